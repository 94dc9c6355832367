// The player of the stage.

import { initialQuery, linkSelect, updateAddress } from "./address.js";
import { calm, onKeys, within } from "./dom.js";
import { Timeline } from "./pace.js";
import { explained, phaseAt, phasesOf, reached } from "./round_phases.js";
import { sentenceOf } from "./round_words.js";

/** What the stage shows, and what a workshop's presenter shows: between the stage and the workshop's bar. ``shown``: {run,
    at, number} of this page; ``guess``: [frame, place] of the draft token that is open, or null; ``led``: what a presenter
    shows, {run, at, guess}, or null where nobody is followed. */
export const view = { shown: {}, guess: null, led: null };

/** Decide which instant of the run is shown. Time advances it, at so many rounds per second; or the run itself, as long as
    it is followed; or a person, phase by phase. No frame needs a request to the server.
    ``stage.part``: the round that is under way on the stage, as {frame, place of its phase}; the picture is as before it.
    null: the picture's frame is shown whole. */
export function addPlayer(stage) {
  const { element, charts, dirty } = stage;
  const $ = within(element);

  const bar = $(".bar");
  const speed = $(".speed");
  const buttons = Object.fromEntries([...element.querySelectorAll("[data-do]")].map((button) => [button.dataset.do, button]));
  const PAUSE = 800; // milliseconds between two showings of a looped round
  const SEEN = 240; // milliseconds of a round from which on its phases can be seen

  /** following: the newest frame as it comes · playing: frame after frame, at the speed that is chosen · looping: one
      round, over and over · still · led: what a presenter shows */
  stage.mode = "following";
  stage.held = false; // a person moved it last
  stage.unasked = false; // it moved by itself: screen readers are not told of every frame
  stage.part = null;
  let looped = 0;
  let slowed = "auto"; // the speed before real time
  let timeline;
  let clock = 0; // milliseconds of the film
  let ticked = 0;
  let ticking = 0;

  const live = () => stage.run.running && (stage.mode === "following" || (stage.mode === "led" && stage.led.at === null));
  const moving = () => stage.mode === "playing" || live();
  const fleeting = () => live() || (stage.mode === "playing" && !phased()); // too fast for the page to be laid out for each picture

  /** A new run, or one from a file, is shown from its beginning: as it comes or, where the page has it ``slowed``, at the
      chosen speed. */
  function rewind() {
    stage.part = null;
    stage.moved();
    const slowed = (stage.slowed || stage.opening) && !stage.kept && !stage.paired && !calm.matches && stage.run.running && speed.value !== "real" && wanted === null;
    enter(stage.led ? "led" : slowed ? "playing" : "following");
    stage.held = false;
    stage.pans += 1;
  }

  /** New frames have come. */
  function follow() {
    if (stage.mode === "led") return moveAsLed();
    if (stage.mode !== "following") return;
    move(stage.picture.last);
    stage.unasked = stage.run.running;
    if (wanted === null || !stage.linked()) return;
    const [asked, later] = wanted;
    const beyond = stage.picture.frames.findIndex(({ step, finished }) => step > asked || finished);
    const end = beyond < 0 && !stage.run.running ? stage.picture.frames.length : beyond; // a file may end before its run does
    const first = stage.picture.frames.findIndex(({ step }) => step === asked);
    if (end > 0) go(first < 0 ? end - 1 : Math.min(first + later, end - 1));
  }

  /** Sentences of what has been shown since the last picture: the rare ones and the newest, said with the next. */
  stage.words = [];

  /** Show a frame, or a round up to one of its phases (``place``). ``byHand``: a person asked for it, so its sentence is
      said at once. */
  function move(seq, byHand = false, place = Infinity) {
    const from = stage.picture.at;
    stage.held = byHand;
    stage.unasked = false;
    const frame = stage.picture.frames[seq];
    stage.part = frame && place < phasesOf(frame).length - 1 ? { frame, place } : null;
    for (const name of stage.picture.go(stage.part ? seq - 1 : seq)) dirty.add(name);
    $(".stage").dataset.at = stage.picture.at; // data-seq follows when it is drawn
    stage.moved();
    const end = stage.picture.frame?.finished;
    if (stage.part) stage.words = [[sentenceOf(frame, reached(frame, place)), false, stage.sayNow]];
    else if (byHand || stage.picture.at < from || end) {
      if (stage.picture.at !== from || byHand) stage.words = [[end ? atTheEnd() : stage.picture.say, end?.reason === "error", stage.sayNow]];
    } else {
      const news = stage.picture.frames.slice(from + 1, stage.picture.at + 1);
      const said = news.filter(({ say, head }) => say && !head); // a head's is of rest
      for (const { say: text, linger } of said.filter((one) => one.linger || one === said.at(-1))) stage.words.push([text, linger, stage.say]);
    }
    report();
    stage.schedule();
  }

  /** The sentence at the run's end, with a hint to play it: it was over before anybody could watch. */
  function atTheEnd() {
    return stage.picture.last > 1 ? `${stage.picture.say} ▶ Replay.` : stage.picture.say;
  }

  /** A person moves to a frame, or to a phase of its round. */
  function go(seq, place = Infinity) {
    const to = Math.min(Math.max(seq, 0), stage.picture.last);
    if (stage.mode === "looping") [looped, clock] = [Math.max(to, 1), 0];
    else enter("still");
    stage.pans += 1;
    move(to, true, place);
    remember();
  }

  /** The frame that is shown, whole or in part. */
  const shown = () => (stage.mode === "looping" ? looped : (stage.part?.frame.seq ?? stage.picture.at));

  function nextPhase() {
    if (stage.mode === "looping") return go(looped + 1);
    if (stage.part) return go(stage.part.frame.seq, stage.part.place + 1);
    if (stage.picture.at < stage.picture.last) go(stage.picture.at + 1, 0);
  }

  function lastPhase() {
    const { part, picture } = stage;
    if (stage.mode === "looping") return go(looped - 1);
    if (part) return part.place ? go(part.frame.seq, part.place - 1) : go(part.frame.seq - 1);
    const phases = phasesOf(picture.frame);
    return phases.length > 1 ? go(picture.at, phases.length - 2) : go(picture.at - 1);
  }

  function enter(next) {
    cancelAnimationFrame(ticking);
    if (stage.led && next !== "led") leave();
    stage.mode = next;
    if (!moving()) stage.fit();
    if (stage.mode !== "following") wanted = null; // reached, or somebody went elsewhere
    stage.unasked = false;
    charts.forEach((name) => dirty.add(name)); // at rest every row is drawn
    if (stage.mode === "playing" || stage.mode === "looping") {
      ticked = performance.now();
      restart();
      ticking = requestAnimationFrame(tick);
    }
    remember();
    report();
    stage.schedule();
  }

  /** Begin the clock at what is shown. */
  function restart() {
    const { frames } = stage.picture;
    timeline = new Timeline(frames, speed.value, !stage.run.running);
    clock = stage.mode === "looping" ? 0 : timeline.end(shown() - (stage.part ? 1 : 0));
  }

  /** Milliseconds for which the frame is shown that plays. */
  function shownFor() {
    const seq = Math.max(0, shown());
    return timeline.end(seq) - timeline.end(seq - 1);
  }

  /** Whether rounds play so slowly that their phases are seen. */
  const phased = () => shownFor() >= SEEN;

  function tick(now) {
    const passed = Math.max(0, now - ticked);
    ticked = now;
    ticking = requestAnimationFrame(tick);
    if (stage.mode === "looping") return loop(passed);
    if (timeline.over === stage.run.running) restart(); // the run's end is known now, which "fit" goes by
    const { last } = stage.picture;
    clock += passed;
    const { seq, share } = timeline.at(clock, last);
    const frame = stage.picture.frames[seq];
    const place = share < 1 && timeline.end(seq) - timeline.end(seq - 1) >= SEEN ? phaseAt(frame, share) : share < 1 ? -1 : Infinity;
    const moves = place < 0 ? seq - 1 > stage.picture.at : seq !== shown() || place !== (stage.part?.place ?? Infinity);
    if (moves) {
      if (place < 0) move(seq - 1);
      else move(seq, false, place);
      stage.unasked = !stage.picture.frame?.finished;
    }
    if (moves || (dirty.size && now >= stage.chartsDue)) stage.draw();
    if (seq < last || share < 1) return;
    clock = timeline.end(last); // it waits for the run
    if (!stage.run.running) enter("still");
  }

  /** Show one round over and over, as if it were explained, and a moment of its end. */
  function loop(passed) {
    const frame = stage.picture.frames[looped];
    const lasts = explained(frame) || 1000;
    clock = (clock + passed) % (lasts + PAUSE);
    const place = clock < lasts && phasesOf(frame).length ? phaseAt(frame, clock / lasts) : Infinity;
    const at = stage.part?.frame.seq ?? stage.picture.at;
    if (at === looped && (stage.part?.place ?? Infinity) === place) return;
    move(looped, true, place);
    stage.unasked = true;
  }

  const actions = {
    first: () => go(0),
    back: lastPhase,
    on: nextPhase,
    roundBack: () => go(shown() - 1),
    roundOn: () => go(stage.part && stage.mode !== "looping" ? shown() : shown() + 1),
    last: () => (stage.run.running ? actions.live() : go(stage.picture.last)),
    live() {
      enter("following");
      move(stage.picture.last, true);
      stage.held = false;
    },
    play() {
      if (stage.mode === "playing" || stage.mode === "looping" || moving()) return enter("still");
      if (stage.picture.at === stage.picture.last && !stage.run.running) move(0, true);
      enter("playing");
    },
    /** Switch to real time, in which a run that goes on is followed, and back. */
    real() {
      const slow = speed.value !== "real";
      if (slow) slowed = speed.value;
      speed.value = slow ? "real" : slowed;
      speed.dispatchEvent(new Event("change"));
      if (slow && stage.run.running) actions.live();
    },
    loop() {
      if (stage.mode === "looping") return enter("still"), go(looped);
      looped = Math.max(1, shown());
      enter("looping");
    },
  };

  for (const [name, button] of Object.entries(buttons)) button.onclick = () => (actions[name](), leave());
  bar.addEventListener("input", () => (go(Number(bar.value)), leave()));

  linkSelect("speed", speed);
  speed.addEventListener("change", () => stage.mode === "playing" && restart());

  const ROUNDS = { "shift+arrowleft": "roundBack", "shift+arrowright": "roundOn" };
  const KEYS = { " ": "play", arrowleft: "back", arrowright: "on", home: "first", end: "last", l: "loop", r: "real", ...ROUNDS };
  const STEPS = ["back", "on", "roundBack", "roundOn"]; // as long as their key is held
  const keyed = (action) => (held) => {
    if (!held || STEPS.includes(action)) actions[action]();
    leave();
  };
  const keys = Object.fromEntries(Object.entries(KEYS).map(([key, action]) => [key, keyed(action)]));
  onKeys(element, buttons.play, keys, bar);

  function drawControls() {
    const { frame, last, at, steps } = stage.picture;
    for (const button of [...Object.values(buttons), bar]) button.disabled = last < 1;
    if (!frame) return;
    const here = frame.finished ? "end" : at && frame.step >= 0 ? `step ${frame.step}` : "start"; // the prefill is pass 0
    bar.max = last || 1;
    bar.value = at;
    bar.setAttribute("aria-valuetext", `${here} of ${steps}`);
    bar.style.setProperty("--played", `${(100 * at) / bar.max}%`);
    $(".place").textContent = `${here} / ${steps} · ${time(frame.t_ms)}${live() ? left(frame.t_ms) : ""}`;
    const plays = moving() || stage.mode === "looping";
    buttons.play.classList.toggle("plays", plays);
    buttons.play.ariaLabel = plays ? "Pause" : "Play";
    buttons.loop.setAttribute("aria-pressed", stage.mode === "looping");
    buttons.live.classList.toggle("offered", stage.run.running && stage.mode !== "following");
    buttons.live.hidden = stage.picture.head.recorded;
    buttons.live.disabled = !(stage.run.running && stage.mode !== "following");
  }

  /** How long a run that takes more than three seconds goes on, at most: its texts may end before they are as long as they may be. */
  function left(ms) {
    const { head, columns, tokens } = stage.picture;
    const wanted = columns.sequences?.[0].wanted ?? [head.sampling?.max_tokens ?? 0];
    const most = wanted.reduce((sum, one) => sum + one, 0) * ((head.expected ?? wanted.length) / wanted.length);
    const rest = ms * (most / tokens.length - 1);
    return ms > 1000 && ms + rest > 3000 && rest > 0 && Number.isFinite(rest) ? ` · up to ${Math.ceil(rest / 1000)} s left` : "";
  }

  const time = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`);

  // -- the step in the address -------------------------------------------------------------------------

  /** The frame that a link asks for, until the run has it: a step, and how many frames come after the step's own (a
      preemption, an admission); "15" is the own, "15.1" the next. "start" comes before all steps. */
  let wanted = asksFor(initialQuery.get("step"));
  function asksFor(place) {
    const [, step, later = 0] = /^(\d+|start)(?:\.(\d+))?$/.exec(place) ?? [];
    return step ? [step === "start" ? -1 : Number(step), Number(later)] : null;
  }
  let remembering;
  document.addEventListener("decode-lab-other", () => (wanted = null));
  /** Put the frame that is shown into the address: none where the run is followed, or at its end. Browsers
      limit how often an address is rewritten. */
  function remember() {
    clearTimeout(remembering);
    if (stage.mode === "playing" || stage.mode === "led" || wanted !== null) return;
    remembering = setTimeout(() => {
      const at = shown();
      updateAddress({ step: stage.mode === "following" || !stage.linked() ? null : placeOf(stage.picture.frames[at]) });
    }, 250);
  }

  /** A frame, as a link names it; null: the last one, which a link shows anyway. */
  function placeOf(frame) {
    if (!frame || frame.finished) return null;
    const { step } = frame;
    const later = frame.seq - stage.picture.frames.findIndex((other) => other.step === step);
    const name = step < 0 ? "start" : step;
    return later ? `${name}.${later}` : name;
  }

  // -- being led ---------------------------------------------------------------------------------------
  // In a workshop (pages/workshop/workshop_bar.js) a page reports what it shows, and shows what it is told to.

  /** What a presenter shows: {run, at, guess}, ``at`` null for the newest frame; null: nobody is followed. */
  stage.led = null;

  /** Show what the presenter shows. Nothing of another run is shown until its first frame has come. */
  function beLed() {
    const was = stage.led;
    stage.led = view.led;
    if (!stage.led) return was && stage.mode === "led" && enter("still");
    if (stage.run.own && stage.run.running) {
      document.querySelector("#stop")?.click(); // nobody would see it
      stage.over();
    }
    stage.read(`${JSON.stringify({ run: stage.led.run, live: true })}\n`);
    if (stage.picture.id !== stage.led.run) return;
    if (stage.mode !== "led") enter("led");
    moveAsLed();
  }

  function moveAsLed() {
    if (stage.picture.last < 0) return;
    move(stage.led.at ?? stage.picture.last, stage.led.at !== null);
    stage.unasked = !stage.picture.frame.finished;
  }

  /** A person takes over, or runs something: from here on the stage is their own. */
  function leave() {
    stage.led = null;
    if (stage.mode === "led") stage.mode = "still";
    document.dispatchEvent(new Event("decode-lab-left"));
  }

  /** Report what is shown, for followers; if the run is followed here, that is its newest frame. */
  function report() {
    const number = stage.picture.own ? stage.picture.frames.findLast(({ owner }) => owner !== undefined)?.owner : undefined;
    view.shown = { run: stage.picture.id, at: stage.mode === "following" ? null : stage.picture.at, number };
    document.dispatchEvent(new Event("decode-lab-shown"));
  }

  document.addEventListener("decode-lab-led", beLed);

  Object.assign(stage, { bar, speed, live, moving, fleeting, rewind, follow, move, enter, go, phased, shownFor, leave, drawControls, beLed, report });
}
