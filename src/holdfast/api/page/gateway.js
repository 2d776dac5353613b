// Talking to the gateway: requests that carry the token, events as they come, and errors sorted by what to do next.

// A live stream says something at least this often, if only that it is alive; a sleeping laptop's does not.
const SILENCE = 60_000;

/** The gateway said no, with a reason for people. */
export class Refused extends Error {}

/** The token is missing or wrong: ask for it. */
export class Locked extends Error {}

/** No answer, or not now: ask again, after `wait` seconds where the gateway named them. */
export class Away extends Error {
  constructor(message, wait = 0) {
    super(message);
    this.wait = wait;
  }
}

/** An id that nobody else makes. (crypto.randomUUID is not there on plain http from another machine.) */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Gateway {
  token = "";

  async json(path, options) {
    const response = await this.#fetch(path, options);
    try {
      return await response.json();
    } catch (error) {
      throw brokenOff(error);
    }
  }

  /** The events of one answer, or null when nothing runs. */
  async events(path, options) {
    const response = await this.#fetch(path, options, "text/event-stream");
    return response.status === 204 ? null : readEvents(response.body);
  }

  async #fetch(path, { body, signal } = {}, accept = "application/json") {
    if (!/^[\x21-\x7e]+$/.test(this.token)) throw new Locked("The token is missing or wrong.");
    const headers = { Accept: accept, Authorization: `Bearer ${this.token}` };
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body ? "POST" : "GET",
        headers,
        body: body && JSON.stringify(body),
        signal,
        cache: "no-store",
      });
    } catch (error) {
      throw brokenOff(error);
    }
    if (!response.ok) throw await failure(response);
    return response;
  }
}

function brokenOff(error) {
  return error.name === "AbortError" ? error : new Away("The gateway does not answer.");
}

async function failure(response) {
  const { error } = await response.json().catch(() => ({}));
  const message = error?.message ?? `The gateway answered with status ${response.status}.`;
  if (response.status === 401) return new Locked(message);
  if ([429, 502, 503, 504].includes(response.status)) {
    return new Away(message, Number(response.headers.get("Retry-After")) || 0);
  }
  return new Refused(message);
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await patiently(reader.read());
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
      }
    }
  } catch (error) {
    throw brokenOff(error);
  } finally {
    reader.cancel().catch(() => {}); // the stream is over either way; a broken one says so once more
  }
}

function patiently(reading) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Away("The gateway fell silent.")), SILENCE);
  });
  return Promise.race([reading, silence]).finally(() => clearTimeout(timer));
}
