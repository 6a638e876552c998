// The session of this browser: a link's secret becomes a token, once; the token stays in the tab,
// or in the browser if the user asks for that.

const NAME = "millpond.session";
const SECRET = /^#(mpw1\.[A-Za-z0-9_-]{20,})$/;

/** {token, isStale}: the token or null, after the link in the address was used if there is one;
 *  whether that link was good for nothing any more. */
export async function session() {
  const secret = SECRET.exec(location.hash)?.[1];
  if (secret) {
    // Out of the address at once, so that it is in no history and no bookmark.
    history.replaceState(null, "", location.pathname);
    const answer = await fetch("/chat/login", { method: "POST", body: secret });
    if (!answer.ok) {
      return { token: known(), isStale: true };
    }
    keep((await answer.json()).token, isRemembered());
  }
  return { token: known(), isStale: false };
}

/** Whether the session outlives the tab. */
export function isRemembered() {
  return localStorage.getItem(NAME) !== null;
}

/** Have the session outlive the tab, or not. */
export function remember(wanted) {
  const kept = known();
  forget();
  if (kept) {
    keep(kept, wanted);
  }
}

/** The node does not take this token any more. */
export function forget() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}

/** End the session, here and at the node. */
export async function end() {
  const kept = known();
  forget();
  if (kept) {
    await fetch("/chat/logout", { method: "POST", body: kept });
  }
}

function known() {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME);
}

function keep(token, forLong) {
  (forLong ? localStorage : sessionStorage).setItem(NAME, token);
}
