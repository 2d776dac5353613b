// The line to the gateway: it may break at any moment and comes back by itself. Whoever needs an answer asks here
// and is asked to try again until there is one; what was said while the line was down is not lost.

import { Away } from "./gateway.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 6_000;

export class Line {
  #onChange;
  #failures = 0;
  #pause = null; // what all who wait share: one rhythm, however many ask

  /** `onChange(reason)` is called with a sentence when the line breaks and with "" when it is back. */
  constructor(onChange) {
    this.#onChange = onChange;
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => this.hurry());
  }

  get isBroken() {
    return this.#failures > 0;
  }

  /** The line works: something came over it. */
  works() {
    if (!this.#failures) return;
    this.#failures = 0;
    this.#onChange("");
  }

  /** Try now instead of when the pause is over. */
  hurry() {
    this.#pause?.end();
  }

  /** Do `attempt` until the gateway answers it, however long that takes; `signal` gives up. */
  async persist(attempt, signal) {
    for (;;) {
      try {
        const result = await attempt();
        this.works();
        return result;
      } catch (error) {
        if (!(error instanceof Away)) throw error;
        await unlessAborted(this.rest(error), signal);
      }
    }
  }

  /** Wait until it is worth asking again. */
  rest(error) {
    if (!this.#pause) {
      const backoff = Math.min(FIRST_PAUSE * 2 ** this.#failures, LONGEST_PAUSE);
      this.#failures += 1;
      this.#pause = pause(Math.max(backoff, error.wait * 1000) * (1 + Math.random() / 5));
      this.#pause.over.then(() => (this.#pause = null));
      this.#onChange(error.message);
    }
    return this.#pause.over;
  }
}

/** Wait for `promise`, but no longer than until `signal` gives up. */
export function unlessAborted(promise, signal) {
  if (!signal) return promise;
  const { promise: aborted, reject } = Promise.withResolvers();
  const giveUp = () => reject(signal.reason);
  signal.addEventListener("abort", giveUp);
  if (signal.aborted) giveUp();
  return Promise.race([promise, aborted]).finally(() => signal.removeEventListener("abort", giveUp));
}

function pause(milliseconds) {
  const { promise: over, resolve: end } = Promise.withResolvers();
  setTimeout(end, milliseconds);
  return { over, end };
}
