// The player: which instant of the run is shown. The run itself advances it as long as it is followed; otherwise
// time does, slowed down, or a person. No frame needs a request to the server.

const bar = $(".bar");
const speed = $(".speed");
const buttons = Object.fromEntries([...element.querySelectorAll("[data-do]")].map((button) => [button.dataset.do, button]));
const HALF = 700; // least milliseconds for which a looped round shows its before and its after, against flicker

/** following: the newest frame as it comes · playing: frame after frame, in the run's own time times the speed ·
    looping: one frame, before and after · still · led: what a presenter shows */
let mode = "following";
let held = false; // a person moved it last
let unasked = false; // it moved by itself: screen readers are not told of every frame
let looped = 0;
let clock = 0; // playing: milliseconds of the run; looping: milliseconds that have passed
let ticked = 0;
let ticking = 0;

const live = () => run.running && (mode === "following" || (mode === "led" && led.at === null));
const moving = () => mode === "playing" || live();

/** A new run is followed from its beginning. */
function rewind() {
  moved();
  enter(led ? "led" : "following");
  held = false;
  pans += 1;
}

/** New frames have come. */
function follow() {
  if (mode === "led") return moveAsLed();
  if (mode !== "following") return;
  move(picture.last);
  unasked = run.running;
  if (wanted === null || !linked()) return;
  const [asked, later] = wanted;
  const beyond = picture.frames.findIndex(({ step, finished }) => step > asked || finished);
  const end = beyond < 0 && !run.running ? picture.frames.length : beyond; // a file may end before its run does
  const first = picture.frames.findIndex(({ step }) => step === asked);
  if (end > 0) go(first < 0 ? end - 1 : Math.min(first + later, end - 1));
}

/** Sentences of what has been shown since the last picture: said with the next. */
let words = [];

/** Show a frame. ``byHand``: a person asked for it, so its sentence is said at once. */
function move(seq, byHand = false) {
  const from = picture.at;
  held = byHand;
  unasked = false;
  for (const name of picture.go(seq)) dirty.add(name);
  $(".stage").dataset.at = picture.at; // data-seq follows when it is drawn
  moved();
  const end = picture.frame?.finished;
  if (byHand || picture.at < from || end) {
    if (picture.at !== from || byHand) words = [[end ? atTheEnd() : picture.say, end?.reason === "error", sayNow]];
  } else {
    const news = picture.frames.slice(from + 1, picture.at + 1);
    for (const { say: text, linger, head } of news) if (text && !head) words.push([text, linger, say]); // a head's is of rest
  }
  tell();
  schedule();
}

/** The sentence at the run's end, with a hint to play it: it was over before anybody could watch. */
function atTheEnd() {
  const slow = speed.value < 1 ? `${Math.round(1 / speed.value)} times slower` : "at its true speed";
  return picture.last > 1 ? `${picture.say} ▶ plays it ${slow}.` : picture.say;
}

/** A person moves to a frame. */
function go(seq) {
  const to = Math.min(Math.max(seq, 0), picture.last);
  if (mode === "looping") [looped, clock] = [Math.max(to, 1), HALF];
  else enter("still");
  pans += 1;
  move(to, true);
  remember();
}

function enter(next) {
  cancelAnimationFrame(ticking);
  if (led && next !== "led") leave();
  mode = next;
  if (mode !== "following") wanted = null; // reached, or somebody went elsewhere
  unasked = false;
  charts.forEach((name) => dirty.add(name)); // at rest every row is drawn
  if (mode === "playing" || mode === "looping") {
    ticked = performance.now();
    clock = mode === "playing" ? picture.frame.t_ms : 0;
    ticking = requestAnimationFrame(tick);
  }
  remember();
  tell();
  schedule();
}

function tick(now) {
  const passed = Math.max(0, now - ticked);
  ticked = now;
  ticking = requestAnimationFrame(tick);
  const { frames } = picture;
  if (mode === "looping") {
    clock += passed;
    const half = Math.max(HALF, (frames[looped].t_ms - frames[looped - 1].t_ms) / speed.value);
    const to = clock % (2 * half) < half ? looped - 1 : looped;
    if (to === picture.at) return;
    move(to, true);
    unasked = true;
    return;
  }
  clock += passed * speed.value;
  let to = picture.at;
  while (to < picture.last && frames[to + 1].t_ms <= clock) to += 1;
  const moves = to !== picture.at;
  if (moves) {
    move(to);
    unasked = !picture.frame.finished;
  }
  if (moves || (dirty.size && now >= chartsDue)) draw();
  if (to < picture.last) return;
  clock = Math.min(clock, frames[to].t_ms); // it waits for the run
  if (!run.running) enter("still");
}

const actions = {
  first: () => go(0),
  back: () => go((mode === "looping" ? looped : picture.at) - 1),
  on: () => go((mode === "looping" ? looped : picture.at) + 1),
  last: () => (run.running ? actions.live() : go(picture.last)),
  live() {
    enter("following");
    move(picture.last, true);
    held = false;
  },
  play() {
    if (mode === "playing" || mode === "looping" || moving()) return enter("still");
    if (picture.at === picture.last && !run.running) move(0, true);
    enter("playing");
  },
  loop() {
    if (mode === "looping") return go(looped), enter("still");
    looped = Math.max(1, picture.at);
    enter("looping");
  },
};

for (const [name, button] of Object.entries(buttons)) button.onclick = () => (actions[name](), leave());
bar.addEventListener("input", () => (go(Number(bar.value)), leave()));

window.decodeLab.choice("speed", speed);
speed.addEventListener("change", () => mode !== "playing" && picture.frame?.finished && sayNow(atTheEnd()));

const KEYS = { " ": "play", arrowleft: "back", arrowright: "on", home: "first", end: "last", l: "loop" };
document.addEventListener("keydown", (event) => {
  const { target } = event;
  const key = event.key?.toLowerCase(); // autofill sends events without a key
  const action = KEYS[key];
  if (!action || !element.offsetParent || buttons.play.disabled || modified(event)) return;
  if (target !== bar && isForTarget(event, key)) return;
  if (action !== "loop" && target.closest(".rule")) return; // it scrolls
  event.preventDefault();
  if (!event.repeat || action === "back" || action === "on") actions[action]();
  leave();
});

// After a button was pressed with a pointer, the next key is meant for the run and not for the button.
document.addEventListener("click", ({ target, detail }) => detail && target.closest("#run, .transport button")?.blur());

function drawControls() {
  const { frame, last, at, steps } = picture;
  for (const button of [...Object.values(buttons), bar]) button.disabled = last < 1;
  if (!frame) return;
  const here = frame.finished ? "end" : at && frame.step >= 0 ? `pass ${frame.step}` : "start"; // the prefill is pass 0
  bar.max = last || 1;
  bar.value = at;
  bar.setAttribute("aria-valuetext", `${here} of ${steps}`);
  bar.style.setProperty("--played", `${(100 * at) / bar.max}%`);
  $(".place").textContent = `${here} / ${steps} · ${time(frame.t_ms)}`;
  const plays = moving() || mode === "looping";
  buttons.play.classList.toggle("plays", plays);
  buttons.play.setAttribute("aria-label", plays ? "Pause" : "Play");
  buttons.loop.setAttribute("aria-pressed", mode === "looping");
  buttons.live.classList.toggle("offered", run.running && mode !== "following");
  buttons.live.hidden = picture.head.recorded;
  buttons.live.disabled = !(run.running && mode !== "following");
}

const time = (ms) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`);

// -- the step in the address -------------------------------------------------------------------------

/** The frame that a link asks for, until the run has it: a step, and how many frames come after the step's own (a
    preemption, an admission); "15" is the own, "15.1" the next. "start" comes before all steps. */
let wanted = asksFor(window.decodeLab.asked.get("step"));
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
  if (mode === "playing" || mode === "led" || wanted !== null) return;
  remembering = setTimeout(() => {
    const at = mode === "looping" ? looped : picture.at;
    window.decodeLab.address({ step: mode === "following" || !linked() ? null : placeOf(picture.frames[at]) });
  }, 250);
}

/** A frame, as a link names it; null: the last one, which a link shows anyway. */
function placeOf(frame) {
  if (!frame || frame.finished) return null;
  const { step } = frame;
  const later = frame.seq - picture.frames.findIndex((other) => other.step === step);
  const name = step < 0 ? "start" : step;
  return later ? `${name}.${later}` : name;
}

// -- being led ---------------------------------------------------------------------------------------
// In a workshop (strip.js) a page reports what it shows, and shows what it is told to.

/** What a presenter shows: {run, at, guess}, ``at`` null for the newest frame; null: nobody is followed. */
let led = null;

/** Show what the presenter shows. Nothing of another run is shown until its first frame has come. */
function beLed() {
  const was = led;
  led = window.decodeLab.led ?? null;
  if (!led) return was && mode === "led" && enter("still");
  if (run.own && run.running) {
    document.querySelector("#stop")?.click(); // nobody would see it
    over();
  }
  read(`${JSON.stringify({ run: led.run, live: true })}\n`);
  if (picture.id !== led.run) return;
  if (mode !== "led") enter("led");
  moveAsLed();
}

function moveAsLed() {
  if (picture.last < 0) return;
  move(led.at ?? picture.last, led.at !== null);
  unasked = !picture.frame.finished;
}

/** A person takes over, or runs something: from here on the stage is their own. */
function leave() {
  led = null;
  if (mode === "led") mode = "still";
  document.dispatchEvent(new Event("decode-lab-left"));
}

/** Report what is shown, for followers; if the run is followed here, that is its newest frame. */
function tell() {
  const number = picture.own ? picture.frames.findLast(({ owner }) => owner !== undefined)?.owner : undefined;
  window.decodeLab.shown = { run: picture.id, at: mode === "following" ? null : picture.at, number };
  document.dispatchEvent(new Event("decode-lab-shown"));
}

document.addEventListener("decode-lab-led", beLed);
