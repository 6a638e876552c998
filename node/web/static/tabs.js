// The tabs of this page in one browser: unread counts that agree, and notifications by one of them.

const NAME = "millpond-chat";
const SETTING = "millpond-notify";
const ATTENDED_MS = 9_000;
const TEXT_CHARS = 120;

/** True if this browser can show notifications: it does for secure pages alone. */
export function canNotify() {
  return isSecureContext && "Notification" in window;
}

export function notifies() {
  return canNotify() && Notification.permission === "granted" && localStorage.getItem(SETTING) === "yes";
}

/** Gives whether notifications are on now: the browser asks the person. */
export async function setNotifies(isOn) {
  const isAllowed = isOn && canNotify() && (await Notification.requestPermission()) === "granted";
  localStorage.setItem(SETTING, isAllowed ? "yes" : "no");
  return isAllowed;
}

export class Tabs {
  /** `onRead` is called when another tab has marked messages as read; `onChoose` hears the id of the
   *  conversation whose notification was clicked. */
  constructor(onRead, onChoose) {
    this.onChoose = onChoose;
    this.unread = null;
    this.attendedAt = 0;
    this.isLeader = false;
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel(NAME) : null;
    this.channel?.addEventListener("message", ({ data }) => {
      if (data === "read") onRead();
      if (data === "attended") this.attendedAt = Date.now();
    });
    window.addEventListener("focus", () => this.attend());
    // The first tab notifies, until it is closed or its session has ended.
    this.ended = new AbortController();
    const { signal } = this.ended;
    const lead = () => {
      this.isLeader = !signal.aborted;
      return new Promise((resolve) => signal.addEventListener("abort", resolve));
    };
    navigator.locks?.request(NAME, { signal }, lead).catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
  }

  /** The session has ended: another tab notifies. */
  close() {
    this.isLeader = false;
    this.ended.abort();
    this.channel?.close();
    this.channel = null;
  }

  /** Messages were marked as read here. */
  read() {
    this.channel?.postMessage("read");
  }

  /** Tell the other tabs that the person looks at this one. */
  attend() {
    if (document.visibilityState !== "visible" || !document.hasFocus()) return false;
    this.attendedAt = Date.now();
    this.channel?.postMessage("attended");
    return true;
  }

  /** The conversations as they are now: notify of new messages that nobody looks at. */
  news(chats) {
    const before = this.unread;
    this.unread = new Map(chats.map(({ id, unread }) => [id, unread]));
    const isAttended = this.attend() || Date.now() - this.attendedAt < ATTENDED_MS;
    if (before === null || isAttended || !this.isLeader || !notifies()) return;
    for (const chat of chats) {
      if (chat.unread > (before.get(chat.id) ?? 0)) this.notify(chat);
    }
  }

  notify({ id, name, last, unread }) {
    const text = last?.kind === "in" ? `${last.by ? `${last.by}: ` : ""}${last.text}`.slice(0, TEXT_CHARS) : "";
    const body = unread > 1 ? `${unread} unread: ${text}` : text;
    const notification = new Notification(name, { body, tag: id, icon: "/icon.svg" });
    notification.addEventListener("click", () => {
      window.focus();
      this.onChoose(id);
      notification.close();
    });
  }
}
