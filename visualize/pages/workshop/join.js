// A workshop's doors (visualize/pages/workshop/routes.py), and what the browser keeps of passing them. It comes before the
// scripts of the strip above the Lab and of the Room page.

const KEPT_CODE = "decode-lab-code";
const KEPT_KEY = "decode-lab-key";
const KEPT_NUMBER = "decode-lab-number"; // of this browser's own run, and the room that gave it

let tried = null; // the code last tried, or to be tried, on this page: the browser may keep none, or forget it in another tab
let turns = 0; // grows when something is asked or done: answers to what was asked before come too late
let theRoom = null; // the channel of the room that this page was let into: that of a restarted server is another
const leads = location.hash.startsWith("#lead="); // by its address, not by an old key that the browser kept
const key = presentersKey(); // null: this page is not the presenter's

/** The answer of a door; ``problem`` is a sentence. */
async function ask(door, question) {
  try {
    const signal = AbortSignal.timeout(SILENT); // a connection may die without a word
    const answer = await fetch(`workshop/${door}`, { method: "POST", body: JSON.stringify(question), signal });
    return await answer.json();
  } catch {
    return { problem: "The server does not answer. Is it still running, and is this device still on its network?", lost: true };
  }
}

/** Keep what a door accepted for the next page, and forget what it refused. Another that is kept may be the right one. */
function learn(name, text, accepted, { lost }) {
  if (accepted) keep(name, text);
  else if (!lost && kept(name) === text) keep(name, null);
}

/** Join with a code. Null: the answer came too late. */
async function join(typed) {
  const code = (tried = typed.replace(/\s/g, "").toUpperCase());
  const turn = ++turns;
  const answer = await ask("join", { code });
  if (turn !== turns) return null;
  theRoom = answer.room ?? theRoom;
  learn(KEPT_CODE, code, answer.lead, answer);
  return answer;
}

/** The code to join with: the one last tried, or that of the page's address, or the kept one. */
const knownCode = () => tried ?? new URLSearchParams(location.search).get("join") ?? kept(KEPT_CODE);

/** Keep the number of this browser's own run. A restarted server, or another one, gives it to somebody else's. */
const keepNumber = (number) => keep(KEPT_NUMBER, `${number} ${theRoom}`);

/** The number of this browser's own run in this room; NaN: none. */
function keptNumber() {
  const [number, room] = (kept(KEPT_NUMBER) ?? "").split(" ");
  return room === theRoom ? Number(number) : NaN;
}

/** Identify this page as the presenter's. */
async function present() {
  const answer = await ask("presenter", { key, page: new URL(".", location.href).href });
  theRoom = answer.room ?? theRoom;
  learn(KEPT_KEY, key, answer.code, answer);
  return answer;
}

// An address that differs only in what is after the # is not loaded by itself.
addEventListener("hashchange", () => location.hash.startsWith("#lead=") && location.reload());

/** The key as it stands in this page's address, or the kept one. It is removed from the address, which an audience may
    read. */
function presentersKey() {
  const [, lead] = /^#lead=(.*)$/.exec(location.hash) ?? [];
  if (lead === undefined) return kept(KEPT_KEY);
  history.replaceState(history.state, "", location.pathname + location.search);
  return lead;
}
