// A workshop's doors (visualize/workshop/doors.py), and what the browser keeps of passing them. It comes before the
// scripts of the strip above the Lab and of the Room page.

const KEPT_CODE = "decode-lab-code";
const KEPT_KEY = "decode-lab-key";
const KEPT_NUMBER = "decode-lab-number"; // of this browser's own run

/** The answer of a door; ``problem`` is a sentence. */
async function ask(door, question) {
  try {
    const answer = await fetch(`workshop/${door}`, { method: "POST", body: JSON.stringify(question) });
    return await answer.json();
  } catch {
    return { problem: "The server does not answer. Is it still running, and is this device still on its network?", lost: true };
  }
}

/** Join with a code. It is kept for the next page only if it is the right one. */
async function join(typed) {
  const code = String(typed).replace(/\s/g, "").toUpperCase();
  const answer = await ask("join", { code });
  if (answer.lead && kept(KEPT_CODE) !== code) keep(KEPT_NUMBER, null); // of another workshop
  if (!answer.lost) keep(KEPT_CODE, answer.lead ? code : null);
  return answer;
}

/** Identify this page as the presenter's. */
async function present(key) {
  const answer = await ask("presenter", { key, page: new URL(".", location.href).href });
  if (!answer.lost) keep(KEPT_KEY, answer.code ? key : null);
  return answer;
}

/** The key in this page's address, or the kept one. It is removed from the address, which an audience may read. */
function presentersKey() {
  const [, lead] = /^#lead=(.*)$/.exec(location.hash) ?? [];
  if (lead === undefined) return kept(KEPT_KEY);
  history.replaceState(history.state, "", location.pathname + location.search);
  try {
    return decodeURIComponent(lead);
  } catch {
    return lead; // it has a % of its own
  }
}
