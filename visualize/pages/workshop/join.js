// A workshop's routes (visualize/workshop.py), and what the browser stores of passing them.

import { store, stored } from "../../static/dom.js";
import { SILENT } from "../../static/sse.js";

export const KEPT_CODE = "decode-lab-code";
const KEPT_KEY = "decode-lab-key";
const KEPT_NUMBER = "decode-lab-number"; // of this browser's own run, and the room that gave it

/** ``tried``: the code last tried, or to be tried, on this page: the browser may store none, or forget it in another tab.
    ``turns`` grows when something is asked or done: answers to what was asked before come too late. ``room``: the channel
    of the room that this page was let into; that of a restarted server is another. */
export const visit = { tried: null, turns: 0, room: null };
export const leads = location.hash.startsWith("#lead="); // by its address, not by an old key that the browser kept
export const key = presentersKey(); // null: this page is not the presenter's

/** The answer of a route; ``problem`` is a sentence. */
export async function ask(route, question) {
  try {
    const signal = AbortSignal.timeout(SILENT); // a connection may die without a word
    const answer = await fetch(`workshop/${route}`, { method: "POST", body: JSON.stringify(question), signal });
    return await answer.json();
  } catch {
    return { problem: "The server does not answer. Is it still running, and is this device still on its network?", lost: true };
  }
}

/** Keep what a door accepted for the next page, and forget what it refused. Another that is kept may be the right one. */
function learn(name, text, accepted, { lost }) {
  if (accepted) store(name, text);
  else if (!lost && stored(name) === text) store(name, null);
}

/** Join with a code. Null: the answer came too late. */
export async function join(typed) {
  const code = (visit.tried = typed.replace(/\s/g, "").toUpperCase());
  const turn = ++visit.turns;
  const answer = await ask("join", { code });
  if (turn !== visit.turns) return null;
  visit.room = answer.room ?? visit.room;
  learn(KEPT_CODE, code, answer.lead, answer);
  return answer;
}

/** The code to join with: the one last tried, or that of the page's address, or the kept one. */
export const knownCode = () => visit.tried ?? new URLSearchParams(location.search).get("join") ?? stored(KEPT_CODE);

/** Keep the number of this browser's own run. A restarted server, or another one, gives it to somebody else's. */
export const storeNumber = (number) => store(KEPT_NUMBER, `${number} ${visit.room}`);

/** The number of this browser's own run in this room; NaN: none. */
export function storedNumber() {
  const [number, room] = (stored(KEPT_NUMBER) ?? "").split(" ");
  return room === visit.room ? Number(number) : NaN;
}

/** Identify this page as the presenter's. */
export async function present() {
  const answer = await ask("presenter", { key, page: new URL(".", location.href).href });
  visit.room = answer.room ?? visit.room;
  learn(KEPT_KEY, key, answer.code, answer);
  return answer;
}

// An address that differs only in what is after the # is not loaded by itself.
addEventListener("hashchange", () => location.hash.startsWith("#lead=") && location.reload());

/** The key as it stands in this page's address, or the kept one. It is removed from the address, which an audience may
    read. */
function presentersKey() {
  const [, lead] = /^#lead=(.*)$/.exec(location.hash) ?? [];
  if (lead === undefined) return stored(KEPT_KEY);
  history.replaceState(history.state, "", location.pathname + location.search);
  return lead;
}
