// The token: from the link's address, from an earlier visit, or asked for.

import { Away, Locked } from "./gateway.js";
import { write } from "./storage.js";

/** Take the token out of the address (#token=…), so that it is neither bookmarked nor read over a shoulder. */
export function takeTokenFromAddress() {
  const [, token] = /^#token=(.+)$/.exec(location.hash) ?? [];
  if (!token) return null;
  write("token", token);
  history.replaceState(null, "", location.pathname);
  return token;
}

/** Show the form until a token is given that opens the gateway. */
export function askForToken(gateway) {
  const door = document.getElementById("door");
  const form = document.getElementById("door-form");
  const input = document.getElementById("token");
  const trouble = document.getElementById("door-trouble");
  const tell = (sentence) => {
    trouble.textContent = sentence;
    trouble.hidden = !sentence;
  };
  tell(gateway.token ? "The token this browser knows is no longer right." : "");
  door.hidden = false;
  input.focus();
  return new Promise((resolve) => {
    form.onsubmit = async (event) => {
      event.preventDefault();
      gateway.token = input.value.trim();
      try {
        await gateway.json("/api/status");
      } catch (error) {
        if (error instanceof Locked) tell("That token is not right.");
        else tell(error instanceof Away ? "The gateway does not answer; is it running?" : error.message);
        input.select();
        return;
      }
      write("token", gateway.token);
      input.value = "";
      door.hidden = true;
      resolve();
    };
  });
}
