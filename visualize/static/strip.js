// The strip above the Lab in a workshop: who joins, who follows, who leads. The stage (player.js) is told in events of the
// document what it is to show, and tells what it shows. Gradio runs this once, after workshop.js.

const EVERY = 100; // milliseconds from one thing that is shown to the others to the next
const COUNT = 5000; // milliseconds from one look at how many follow to the next

/** out: has not joined · following · alone: joined, on one's own · leading · ready: could lead */
let state = "";
const WHO = Math.random().toString(36).slice(2); // this page among those of presenters
const ALONE = "decode-lab-alone"; // the page is loaded again with the presenter's settings, to go on alone
const OTHER = "Another presenter leads now. Press Lead to take over.";
const OVER = "The workshop is over, or the server was restarted.";
let taking = false; // from whoever leads
let ousted = false; // another presenter's page took over from this one, and leads
let key = presentersKey();
let code = "";
let stream;
let shown = {}; // by the presenter
let seen = false; // something was shown
let lost = false; // the server did not answer who wanted to join
let trouble = ""; // why what this page shows is shown to nobody
let followers = 0;

const SAYS = {
  out: () => "Join with the code on the presenter's screen, and see every step as it is shown.",
  following: () => `You follow the presenter${shown.run ? ": what you see is what is shown." : seen ? ". Nothing is shown now: the last run stays here." : ". Nothing is shown yet."}`,
  alone: () => "You are on your own: try what you like. Your runs share the engine with everybody's.",
  leading: () => `You lead: ${follow()} what this page shows, step by step. Code: ${code}`,
  ready: () => (ousted ? OTHER : `You can lead. ${follow()} when you do. Code: ${code}`),
};
const ACTS = { out: [], following: ["alone", "room", "out"], alone: ["follow", "settings", "room", "out"], leading: ["rest", "room"], ready: ["lead", "room"] };
const follow = () => (followers === 1 ? "1 person follows" : `${followers} follow`);

function become(next, problem = "") {
  state = next;
  if (state !== "following") stream?.close(); // who reads is counted as following
  const focused = element.querySelector(":focus");
  $(".strip").dataset.state = body.dataset.workshop = state;
  $(".strip-join").hidden = state !== "out";
  for (const act of element.querySelectorAll("[data-act]")) act.hidden = !ACTS[state].includes(act.dataset.act);
  if (focused?.closest("[hidden]")) ($("[data-act]:not([hidden])") ?? $("input")).focus();
  say(problem || SAYS[state](), Boolean(problem));
}

function say(text, problem = false) {
  if ($(".strip-say").textContent !== text) $(".strip-say").textContent = text;
  $(".strip-say").classList.toggle("problem", problem);
}

// -- following ---------------------------------------------------------------------------------------

/** ``again``: they were in it. A server that was started anew has the same code if its key was chosen. */
async function enter(asked, again = false) {
  const answer = await join(asked);
  lost = Boolean(answer.lost);
  if (!answer.lead) return become("out", again && !lost ? OVER : answer.problem);
  stream?.close();
  stream = hearChannel(answer.lead, { hear: led, gone: () => enter(asked, true), rests: true });
  become("following");
  window.decodeLab.address({ run: null, step: null }); // of a run of their own
}

function led(news) {
  shown = JSON.parse(news);
  seen ||= Boolean(shown.run);
  if (state !== "following") return;
  say(SAYS.following());
  tellStage();
}

function tellStage() {
  window.decodeLab.led = state === "following" && shown.run ? shown : null;
  document.dispatchEvent(new Event("decode-lab-led"));
}

document.addEventListener("decode-lab-left", () => state === "following" && become("alone"));

// -- leading -----------------------------------------------------------------------------------------

let sending = null; // until it is done
let unsent = false;
/** Show the others what this page shows: the newest at once, what came in between never. */
function send() {
  unsent = true;
  if (!sending && state === "leading") inTurn(sendNow());
}

/** One question about who leads and what is shown after another: they are answered in the order in which they were asked. */
function inTurn(question) {
  sending = question.finally(() => {
    sending = null;
    if (unsent) send();
  });
}

async function sendNow() {
  const take = taking;
  unsent = taking = false;
  const { shown: { run = null, at = null } = {}, guess = null } = window.decodeLab;
  const began = performance.now();
  const answer = await ask("lead", { key, run, at, guess, query: settings(), who: WHO, take });
  if (state !== "leading") return;
  taking ||= take && Boolean(answer.lost);
  if (answer.leader) return giveWay();
  followers = answer.followers ?? followers;
  trouble = answer.problem ?? "";
  say(trouble || SAYS.leading(), Boolean(trouble));
  await new Promise((done) => setTimeout(done, EVERY - (performance.now() - began)));
}

function giveWay() {
  ousted = true;
  become("ready");
}

/** What this page's controls say, and not which run or instant is looked at: who takes it over has a run of their own. */
function settings() {
  const query = new URLSearchParams(location.search);
  for (const name of ["run", "step", "guess", "at", "join"]) query.delete(name);
  return `${query}`;
}

/** How things are, for the presenter. Returns what is wrong. */
async function knock() {
  const before = state;
  const answer = await present(key);
  if (!answer.code) return answer.problem;
  ({ code, followers } = answer);
  if (state !== before || sending) return ""; // the answer to what comes first says more
  const other = Boolean(answer.leader) && answer.leader !== WHO;
  ousted &&= other;
  if (state === "leading" && other && !taking) giveWay();
  if (state === "leading" && (trouble || !answer.leader)) send(); // what was lost, or to a server that was started anew
  return "";
}

setInterval(async () => {
  if (document.hidden) return;
  if (state === "out" && lost) return enter(kept(KEPT_CODE), true);
  if (state !== "leading" && state !== "ready") return;
  const before = state;
  const problem = (await knock()) || (state === "leading" && trouble);
  if (state === before) say(problem || SAYS[state](), Boolean(problem));
}, COUNT);

// -- what a person does, and what the stage tells ----------------------------------------------------

const acts = {
  alone() {
    become("alone");
    tellStage();
  },
  follow: () => enter(kept(KEPT_CODE)),
  async settings() {
    const { query } = await join(kept(KEPT_CODE));
    if (query === undefined) return become("out", OVER);
    keep(ALONE, "yes", "sessionStorage");
    location.search = query;
  },
  lead() {
    trouble = "";
    ousted = false;
    become("leading");
    taking = true;
    send();
  },
  async rest() {
    become("ready");
    await sending;
    if (state === "ready") inTurn(ask("lead", { key, run: null, who: WHO }));
  },
  out() {
    shown = {};
    keep(KEPT_CODE, null);
    become("out");
    tellStage();
  },
};
for (const button of element.querySelectorAll("button[data-act]")) button.onclick = () => acts[button.dataset.act]();
$(".strip-join").onsubmit = (event) => {
  event.preventDefault();
  enter(event.target.elements.code.value);
};

document.addEventListener("decode-lab-shown", () => {
  const { number } = window.decodeLab.shown;
  if (number !== undefined) {
    keep(KEPT_NUMBER, number);
    const mark = $(".strip-own");
    mark.hidden = false;
    mark.className = `strip-own ${tone(number)}`;
    mark.textContent = `your run: ${number}`;
  }
  send();
});

// -- how it begins -----------------------------------------------------------------------------------

async function begin() {
  become("out");
  const query = new URLSearchParams(location.search);
  const asked = query.get("join");
  window.decodeLab.address({ join: null });
  const problem = key && (await knock());
  if (key && !problem) return become("ready");
  const known = asked ?? kept(KEPT_CODE);
  if (!known || problem) return become("out", problem);
  await enter(known);
  if (kept(ALONE, "sessionStorage") && state === "following") acts.alone();
  keep(ALONE, null, "sessionStorage");
}
begin();
