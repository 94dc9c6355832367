// Progress and refusals in words, on the screen and for screen readers.

import { body, say, within, write } from "./dom.js";

/** ``text`` while the last request has no answer yet; ``shown``: whether an earlier answer is still on the page. */
export const markStale = (text, shown) => (shown ? `${text} What is shown is from before.` : text);

const APART = 2500; // milliseconds between steps of a progress that screen readers are told of

/** Tells screen readers of a progress in a status of their own, since the one on the screen changes too often for them:
    of a step now and then, and of the last at once. */
export function announcer(node) {
  let heard = -APART;
  let hearing;
  return (text, underWay) => {
    clearTimeout(hearing);
    hearing = setTimeout(() => {
      if (node.textContent !== text) heard = performance.now();
      write(node, text);
    }, underWay ? heard + APART - performance.now() : 0);
  };
}

/** Show how much of a job is done as a bar, and the time ``left`` beside it. */
export function barOf(element) {
  const [bar, done, left] = [".bar", ".bar i", ".left"].map(within(element));
  return ({ running = false, share = 0, left: words = "" }) => {
    bar.hidden = !running;
    done.style.width = `${100 * share}%`;
    write(left, running ? words : "");
  };
}

/** Show what a look at the machine found: whether it is quiet. */
export function showGate(node, gate) {
  node.hidden = !gate;
  node.classList.toggle("busy", Boolean(gate?.busy));
  write(node, gate?.said ?? "");
}

/** Show a job's progress in words and as a bar, and tell screen readers of it without its count of tokens. */
export function progressOf(element) {
  const $ = within(element);
  const [announce, fill] = [announcer($(".heard")), barOf(element)];
  return ({ running = false, progress = "", problem, ...more }) => {
    const text = problem ?? progress;
    body.classList.toggle("running", running);
    say($(".progress"), text, problem);
    announce(text.replace(/: [\d,]+%? (of .*)?tokens$/, ""), running);
    fill({ running, ...more });
  };
}

const HEARD = 2000; // milliseconds between sentences for screen readers, of a live run and of one that is led
const LINGERS = 1500; // milliseconds for which a rare sentence stays
const WIDE = 7.5; // pixels of a letter, about

/** Give the stage its sentence: ``say`` for a step's, ``sayNow``, and ``hush`` for what is said next. */
export function addSentences(stage, line) {
  let heardAt = 0;
  let quietUntil = 0;
  let pending; // a timer
  let rare = { text: "", until: 0 };
  let room = Infinity; // letters, as of the last time that the page was laid out for it

  /** Say the step's sentence with the picture of the step. A rare one lingers behind those that follow, or an audience
      would never see it. */
  function say(text, lingers = false, failed = false) {
    clearTimeout(pending);
    const now = performance.now();
    if (lingers) rare = { text, until: Math.max(now, quietUntil) + LINGERS };
    if (now < quietUntil) pending = setTimeout(say, quietUntil - now, text, false, failed);
    else speak(text === rare.text || now > rare.until ? text : `${text} (${rare.text})`, failed);
  }

  function speak(text, failed) {
    const plays = stage.mode === "playing" || stage.mode === "looping";
    const aloud = !stage.unasked || (!plays && performance.now() > heardAt + HEARD);
    if (aloud) heardAt = performance.now();
    line.ariaLive = aloud ? "polite" : "off";
    write(line, text);
    line.classList.toggle("problem", failed);
    line.classList.remove("loading");
    if (stage.fleeting()) line.classList.toggle("long", text.length > room);
    else fit();
  }

  /** Make a sentence smaller that would be cut off. */
  function fit() {
    line.classList.remove("long");
    room = (2 * line.clientWidth) / WIDE;
    line.classList.toggle("long", line.scrollHeight > line.clientHeight);
  }
  window.addEventListener("resize", fit);

  /** Say at once what belongs to the beginning, the end, or a step at which a person stopped. */
  function sayNow(text, failed = false) {
    stage.words = [];
    rare.until = 0;
    hush(0);
    say(text, false, failed);
  }

  /** Say nothing for so many milliseconds. */
  function hush(milliseconds) {
    quietUntil = performance.now() + milliseconds;
  }

  /** Show as a bar under the sentence how much of a model is there. */
  function loads(share) {
    line.classList.toggle("loading", share !== null);
    line.style.setProperty("--share", share ?? 0);
  }

  Object.assign(stage, { say, sayNow, hush, fit, loads });
}
