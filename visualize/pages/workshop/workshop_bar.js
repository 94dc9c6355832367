// The bar above the Lab in a workshop: joining, following, leading. Events of the document tell the stage
// (static/player.js) what to show, and tell this script what is shown.

import { updateAddress } from "../../static/address.js";
import { body, say, store, stored, tone, within } from "../../static/dom.js";
import { view } from "../../static/player.js";
import { UNREACHED, openChannel } from "../../static/sse.js";
import { KEPT_CODE, ask, join, key, knownCode, leads, present, storeNumber, visit } from "./join.js";

export function mount(element) {
  const $ = within(element);
  const EVERY = 100; // milliseconds between updates for followers
  const COUNT = 5000; // milliseconds between checks of how many follow

  /** out: has not joined · following · alone: joined, on one's own · leading · ready: could lead */
  let state = "";
  const WHO = Math.random().toString(36).slice(2); // identifies this page among presenters' pages
  const ALONE = "decode-lab-alone"; // set until the page, reloaded with the presenter's settings, is in again: to go on alone
  const OTHER = "Another presenter leads now. Press Lead to take over.";
  const UNLED = "Nobody leads now, so there are no settings to take. Yours are as before.";
  const OVER = "The workshop is over, or the server was restarted.";
  let taking = false; // is to take over from whoever leads
  let ousted = false; // another presenter's page took over from this one, and leads
  let code = "";
  let stream;
  let shown = {}; // by the presenter
  let seen = false; // something was shown
  let own = false; // something was run while the server had not let this person in yet
  let retry = null; // what the server did not answer, to be visit.tried again
  let trouble = ""; // why followers do not see what this page shows
  let unreached = ""; // why nobody can follow
  let followers = 0;

  const SAYS = {
    out: () => "Join with the code on the presenter's screen, and see every step as it is shown.",
    following: () => (shown.left ? `The presenter has left${seen ? ": the last run stays here" : ""}. It goes on when one comes back.` : `You follow the presenter${shows()}`),
    alone: () => "You are on your own: try what you like. Your runs share the engine with everybody's.",
    leading: () => `You lead: ${follow()} what this page shows, step by step. Code: ${code}. ${unreached}`,
    ready: () => (ousted ? OTHER : `You can lead. ${follow()} when you do. Code: ${code}. ${unreached}`),
  };
  const ACTS = { out: [], following: ["alone", "room", "out"], alone: ["follow", "settings", "room", "out"], leading: ["rest", "room"], ready: ["lead", "room"] };
  const shows = () => (shown.run ? ": what you see is what is shown." : seen ? ". Nothing is shown now: the last run stays here." : ". Nothing is shown yet.");
  const follow = () => (followers === 1 ? "1 person follows" : `${followers} follow`);

  function become(next, problem = "") {
    visit.turns += 1;
    state = next;
    if (state !== "following") stream?.close(); // readers are counted as followers
    const focused = element.querySelector(":focus");
    $(".strip").dataset.state = body.dataset.workshop = state;
    $(".strip-join").hidden = state !== "out";
    for (const act of element.querySelectorAll("[data-act]")) act.hidden = !ACTS[state].includes(act.dataset.act);
    if (focused?.closest("[hidden]")) ($("[data-act]:not([hidden])") ?? $("input")).focus();
    sayState(problem);
  }

  const report = (text, problem) => say($(".strip-say"), text, problem);
  const sayState = (problem = "") => report(problem || SAYS[state](), problem);

  // -- following ---------------------------------------------------------------------------------------

  /** Join and follow. ``again``: after having been in. A restarted server has the same code if its key was chosen. */
  async function enter(asked, again = false) {
    own &&= again;
    retry = null;
    const answer = await join(asked);
    if (!answer) return;
    retry = answer.lost ? () => enter(asked, true) : null;
    if (!answer.lead) return become("out", again && !answer.lost ? OVER : answer.problem);
    sayNumber();
    const alone = own || stored(ALONE, "sessionStorage");
    store(ALONE, null, "sessionStorage");
    if (alone) return acts.alone();
    stream?.close();
    const tell = (problem) => state === "following" && sayState(problem);
    const gone = () => enter(asked, true);
    stream = openChannel(answer.lead, { hear: led, gone, lost: () => tell(UNREACHED), found: () => tell(""), rests: true });
    become("following");
    updateAddress({ run: null, step: null, guess: null }); // of a run of their own
  }

  function led(news) {
    shown = JSON.parse(news);
    seen ||= Boolean(shown.run);
    if (state !== "following") return;
    sayState();
    tellStage();
  }

  function tellStage() {
    view.led = state === "following" && shown.run ? shown : null;
    document.dispatchEvent(new Event("decode-lab-led"));
  }

  document.addEventListener("decode-lab-left", () => {
    own = true;
    if (state === "following" || state === "alone") become("alone"); // again: now they may not want to follow any more
  });

  // -- leading -----------------------------------------------------------------------------------------

  let sending = null; // the request in progress
  let unsent = false;
  /** Show followers what this page shows: the newest state as soon as possible, and none of those in between. */
  function send() {
    unsent = true;
    if (!sending && state === "leading") inTurn(sendNow());
  }

  /** Only one request about leading at a time is in progress, so that they are answered in order. */
  function inTurn(question) {
    sending = question.finally(() => {
      sending = null;
      if (unsent) send();
    });
  }

  async function sendNow() {
    const take = taking;
    unsent = taking = false;
    const { shown: { run = null, at = null }, guess } = view;
    const began = performance.now();
    const answer = await ask("lead", { key, run, at, guess, query: settings(), who: WHO, session: body.dataset.session, take });
    if (state !== "leading") return;
    taking ||= take && Boolean(answer.lost);
    if (answer.leader) return giveWay();
    followers = answer.followers ?? followers;
    trouble = answer.problem ?? "";
    sayState(trouble);
    await new Promise((done) => setTimeout(done, EVERY - (performance.now() - began)));
  }

  function giveWay() {
    ousted = true;
    become("ready");
  }

  /** This page's settings without the run and instant that it shows: whoever takes them over makes a run of their own. */
  function settings() {
    const query = new URLSearchParams(location.search);
    for (const name of ["run", "step", "guess", "at", "join"]) query.delete(name);
    return `${query}`;
  }

  /** Get the presenter's view of the workshop. Returns its ``problem``, if any, and whether the server was ``lost``. */
  async function knock() {
    const before = state;
    const answer = await present();
    if (!answer.code) return answer;
    ({ code, followers, problem: unreached = "" } = answer);
    sayNumber();
    if (state !== before || sending) return {}; // the answer to the request in progress says more
    const other = Boolean(answer.leader) && answer.leader !== WHO;
    ousted &&= other;
    if (state === "leading" && other && !taking) giveWay();
    if (state === "leading" && (trouble || !answer.leader)) send(); // what was lost, or again to a restarted server
    return {};
  }

  setInterval(async () => {
    if (document.hidden) return;
    if (state === "out") return retry?.();
    if (state !== "leading" && state !== "ready") return;
    const before = state;
    const problem = (await knock()).problem || (state === "leading" && trouble);
    if (state === before) sayState(problem);
  }, COUNT);

  // -- what a person does, and what the stage tells ----------------------------------------------------

  /** Wait until the page has heard of a run that it asked for (header.js): the stage can then stop it. */
  const runKnown = () => new Promise((known) => {
    const look = () => body.matches(".begun") || (observer.disconnect(), known());
    const observer = new MutationObserver(look);
    observer.observe(body, { attributeFilter: ["class"] });
    look();
  });

  let lastAct = "";
  const acts = {
    alone() {
      become("alone");
      tellStage();
    },
    async follow() {
      await runKnown(); // its late answer would end the following, and the run would go on
      if (lastAct === "follow") enter(knownCode());
    },
    async settings() {
      const answer = await join(knownCode());
      if (!answer) return;
      const { query, problem, lost } = answer;
      if (lost) return report(problem, true);
      if (query === undefined) return become("out", OVER);
      if (query === null) return report(UNLED, true);
      store(ALONE, "yes", "sessionStorage");
      location.search = `${query}&join=${knownCode()}`;
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
      if (state === "ready") inTurn(ask("lead", { key, rest: true, who: WHO }));
    },
    out() {
      shown = {};
      store(KEPT_CODE, null);
      become("out");
      tellStage();
    },
  };
  for (const button of element.querySelectorAll("button[data-act]")) button.onclick = () => acts[(lastAct = button.dataset.act)]();
  $(".strip-join").onsubmit = (event) => {
    event.preventDefault();
    enter(event.target.elements.code.value);
  };

  let numbered = {}; // the last run of one's own, and the room that gave its number
  /** Say the number by which the room shows one's own run. One that another room gave is no longer its. */
  function sayNumber() {
    const { run, number } = view.shown;
    const mark = $(".strip-own");
    if (number !== undefined && visit.room && run !== numbered.run) {
      numbered = { run, room: visit.room };
      storeNumber(number);
      mark.className = `strip-own ${tone(number)}`;
      mark.textContent = `your run: ${number}`;
    }
    mark.hidden = numbered.room !== visit.room;
  }

  document.addEventListener("decode-lab-shown", () => {
    sayNumber();
    send();
  });

  document.addEventListener("decode-lab-address", send); // settings that others may take over

  // -- how it begins -----------------------------------------------------------------------------------

  async function begin() {
    const turn = ++visit.turns;
    const known = (visit.tried = knownCode()); // the address loses it
    retry = null;
    updateAddress({ join: null });
    const { problem, lost } = key ? await knock() : {};
    if (turn !== visit.turns) return; // a code was typed meanwhile
    if (key && !problem) return become("ready");
    retry = lost ? begin : null;
    if (!known || lost || (problem && leads)) return become("out", problem);
    enter(known);
  }
  become("out");
  begin();
}
