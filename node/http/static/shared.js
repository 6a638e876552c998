// A shared state over HTTP: the materialized events of a stream, kept up to date, and writes to it.
// Only fetch is needed; `follow` reads server-sent events by itself, so that it can send a token.

const RETRY_MS = [250, 500, 1000, 2000, 5000];
const SILENT_MS = 40_000;

export class SharedState {
  /** `url`: of the stream's state; `token`: an access token, or "". */
  constructor(url, token = "") {
    this.url = url;
    this.token = token;
    this.types = new Map();
    this.position = "0";
    this.status = "away";
    this.reason = "";
    this.onchange = () => {};
    this.onstatus = () => {};
    this._id = "";
    this._tries = 0;
    this._stop = new AbortController();
  }

  get(type, key) {
    return this.types.get(type)?.get(key);
  }

  /** All values of a type, as a Map that must not be written to. */
  of(type) {
    return this.types.get(type) ?? new Map();
  }

  put(type, key, value) {
    return this._send({ type, key, value, headers: { operation: "update" } });
  }

  remove(type, key) {
    return this._send({ type, key, headers: { operation: "delete" } });
  }

  reset() {
    return this._send({ headers: { control: "reset" } });
  }

  /** Make the stream, unless it is there. */
  async create() {
    await this._ask("PUT");
  }

  /** Follow until `close`; lost connections are mended. */
  async follow() {
    while (!this._stop.signal.aborted) {
      try {
        await this._listen();
      } catch (error) {
        if (this._stop.signal.aborted) return;
        this._tell("away", error.message);
        if (error.isFinal) return;
      }
      const wait = RETRY_MS[Math.min(this._tries++, RETRY_MS.length - 1)];
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  close() {
    this._stop.abort();
  }

  async _listen() {
    const patience = new AbortController();
    const stop = () => patience.abort();
    this._stop.signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENT_MS);
    try {
      const headers = { accept: "text/event-stream", ...this._auth() };
      if (this._id) headers["last-event-id"] = this._id;
      const answer = await fetch(this.url, { headers, signal: patience.signal });
      if (!answer.ok) throw await refusal(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return this._tell("away", "the node ended it");
        clearTimeout(timer);
        timer = setTimeout(stop, SILENT_MS);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        parts.forEach((part) => this._hear(part));
      }
    } finally {
      clearTimeout(timer);
      this._stop.signal.removeEventListener("abort", stop);
    }
  }

  _hear(part) {
    const fields = new Map(part.split("\n").map((line) => split(line)));
    const name = fields.get("event");
    if (!name) return;
    const data = JSON.parse(fields.get("data"));
    if (name === "state") this._fill(data);
    if (name === "change") data.events.forEach((event) => this._apply(event));
    if (name === "live") this._live();
    if (name === "error") throw Object.assign(new Error(data.message), { code: data.code });
    // Only now: what is heard twice does no harm, what is passed over would.
    if (fields.has("id")) this._id = fields.get("id");
    if (data.position) this.position = data.position;
    if (name !== "state") this.onchange();
  }

  _fill({ first, rows }) {
    if (first) this.types.clear();
    rows.forEach(([type, key, value]) => this._put(type, key, value));
  }

  _apply(event) {
    const { operation, control } = event.headers;
    if (control !== undefined) {
      if (control === "reset") this.types.clear();
    } else if (operation === "delete") {
      const values = this.types.get(event.type);
      if (values?.delete(event.key) && !values.size) this.types.delete(event.type);
    } else {
      this._put(event.type, event.key, event.value);
    }
  }

  _put(type, key, value) {
    if (!this.types.has(type)) this.types.set(type, new Map());
    this.types.get(type).set(key, value);
  }

  _live() {
    this._tries = 0;
    this._tell("live", "");
  }

  _tell(status, reason) {
    this.status = status;
    this.reason = reason;
    this.onstatus();
  }

  async _send(event) {
    return (await this._ask("POST", JSON.stringify(event))).json();
  }

  async _ask(method, body) {
    const headers = { "content-type": "application/json", ...this._auth() };
    const answer = await fetch(this.url, { method, headers, body });
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }

  _auth() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }
}

function split(line) {
  const at = line.indexOf(":");
  return [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
}

async function refusal(answer) {
  const { code, message } = await answer.json().catch(() => ({}));
  const error = new Error(message ?? `HTTP ${answer.status}`);
  return Object.assign(error, { code, isFinal: [401, 403].includes(answer.status) });
}
