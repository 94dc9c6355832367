// A token, opened on the stage: how it was verified, and the target's likeliest tokens there.

import { initialQuery, query, updateAddress } from "./address.js";
import { look } from "./chart_panel.js";
import { gently, make, narrow, part, tableRow, within } from "./dom.js";
import { view } from "./player.js";
import { number } from "./token_text.js";

const VERIFIED = ["accepted", "recovered"];
/** How many draft tokens of a frame were verified. */
const verified = ({ verdicts, tokens = [] }) => verdicts?.length ?? tokens.filter(({ origin }) => VERIFIED.includes(origin)).length;
/** How many places of a frame can be opened: also a bonus token's, and that of a token chosen by the target alone. */
const places = (frame) => Math.max(verified(frame), frame.tokens?.length ?? 0);

/** The target's likeliest tokens at a token's position: their probabilities as numbers and bars. */
function likeliest({ top, bits, text }) {
  const bar = ([, p]) => make("td", "", make("i", { style: `--part: ${100 * p}%` }));
  const row = (one) => tableRow(`“${one[0]}”`, [number(one[1]), bar(one)], one[0] === text ? "own" : "");
  return make("table", "top", make("caption", "", `The target's likeliest tokens here (entropy ${number(bits)} bits)`), ...top.map(row));
}

/** Show one token and, of a draft token, how it was verified (visualize/reduce/verification_view.py), in place of the blocks
    and the times. The text and the rounds stay, because tokens are chosen there. */
export function addVerification(stage) {
  const { element, charts, dirty } = stage;
  const $ = within(element);
  const { verdict: verdictLooks } = stage.setup;
  const panel = $(".verdict");
  /** The draft token that a link asks for, as round and place in it, until the run shows it and is paused, or has ended. */
  stage.wantedGuess = /^(\d+)\.(\d+)$/.exec(initialQuery.get("guess"))?.slice(1).map(Number);
  document.addEventListener("decode-lab-other", () => (stage.wantedGuess = null));

  /** Open a verdict. What moves is paused: a text that runs on would take the token out of view. */
  function openVerdict(seq, position) {
    if (stage.moving()) stage.enter("still");
    stage.held = false;
    const { step } = stage.picture.frames[seq];
    if (stage.linked()) updateAddress({ guess: `${step}.${position + 1}` });
    showVerdict(seq, position);
  }

  function showVerdict(seq, position) {
    stage.hideTip();
    stage.opened = { seq, position };
    tellGuess();
    const frame = stage.picture.frames[seq];
    const told = frame.verdicts?.[position];
    const token = frame.tokens?.[position];
    const judged = position < verified(frame);
    const origin = stage.setup.vocabulary.states[token?.origin]?.label;
    $(".verdict h2").textContent = told?.title ?? `Round ${frame.step}, ${judged ? `draft token ${position + 1}` : `${origin} token`}`;
    $(".rule").replaceChildren(...(told ? [told.say] : stage.explained(token)), ...(judged && !told ? [unrecorded()] : []), ...(token?.top ? [likeliest(token)] : []));
    $(".verdict .plot").hidden = !told;
    $(".charts").classList.add("opened");
    panel.hidden = false;
    for (const { mark, about } of stage.shown) mark.classList.toggle("chosen", about === token);
    reveal($(".token.chosen"));
    panel.ariaBusy = "true"; // the panel is seen before its chart is drawn
    requestAnimationFrame(() => setTimeout(() => {
      drawVerdict();
      showRound();
      panel.ariaBusy = "false";
    }));
    if (narrow.matches) panel.scrollIntoView({ behavior: gently(), block: "nearest" });
  }

  /** The hint where no distributions were recorded. In the Lab it says how to get them: if the address still says how the
      run was made, a link makes it again with them, and opens the token. */
  function unrecorded() {
    const hint = make("p", "hint", "This run recorded no distributions. ");
    if (stage.inLesson() || !stage.server) return hint;
    const asked = new URLSearchParams(query);
    if (asked.get("run") !== "1") hint.append("Set “Record distributions” to Top 5 and run again.");
    else {
      asked.set("logprobs", 5);
      hint.append(make("a", { href: `${location.pathname}?${asked}` }, "Run it again with them"), ".");
    }
    return hint;
  }

  /** Scroll the text, and nothing but the text, to a token of it. */
  function reveal(mark) {
    if (!mark) return; // a draft token that gave none: the run ended before it
    const lowest = mark.offsetTop + mark.offsetHeight - stage.story.clientHeight;
    stage.story.scrollTop = Math.min(Math.max(stage.story.scrollTop, lowest), mark.offsetTop);
  }

  /** In the chart of rounds, beside the verdict, mark its round and bring it into view. */
  function showRound() {
    const plot = stage.plotOf("rounds");
    if (!stage.opened || !plot.data) return;
    const [first, last] = plot._fullLayout.xaxis.range;
    const { step } = stage.picture.frames[stage.opened.seq];
    const column = { type: "rect", x0: step - 0.5, x1: step + 0.5, yref: "paper", y0: 0, y1: 1, layer: "below", line: { width: 0 } };
    const changes = { shapes: [{ ...column, fillcolor: "rgba(86, 180, 233, 0.25)" }] };
    if (step < first || step > last) {
      const from = Math.max(0.5, step - (last - first) / 2);
      changes["xaxis.range"] = [from, from + last - first];
    }
    Plotly.relayout(plot, changes);
  }

  /** Close it. What is hidden has no focus: keys go on from the token in the text, or from ``then``. */
  function closeVerdict(then = stage.story) {
    if (!stage.opened) return;
    stage.opened = null;
    tellGuess();
    if (panel.contains(document.activeElement)) then.focus();
    if (stage.mode !== "led" && stage.linked()) updateAddress({ guess: null });
    panel.hidden = true;
    $(".charts").classList.remove("opened");
    $(".token.chosen")?.classList.remove("chosen");
    charts.forEach((name) => dirty.add(name));
    stage.schedule();
  }

  function drawVerdict() {
    const told = stage.opened && stage.picture.frames[stage.opened.seq].verdicts?.[stage.opened.position];
    if (!told) return;
    const shell = verdictLooks[look()];
    const drawn = shell.data.filter((_, i) => told.columns[i].y.length);
    const key = drawn.map(({ name, type, marker, line }) => {
      const bar = type === "bar";
      return part(name, (bar ? marker : line).color, bar ? "" : "line");
    });
    $(".verdict .parts").replaceChildren(...key);
    if (window.Plotly) stage.plotChart($(".verdict .plot"), shell, told.columns, told.layout);
  }

  function openWanted() {
    const [step, place] = stage.wantedGuess;
    stage.wantedGuess = null;
    const seq = stage.picture.frames.findIndex((frame) => frame.step === step && frame.tokens);
    if (seq < 0 || seq > stage.picture.at || place < 1 || place > places(stage.picture.frames[seq])) return;
    stage.drawText(stage.picture); // so that the token can be marked
    openVerdict(seq, place - 1);
  }

  // -- in a workshop (pages/workshop/workshop_bar.js) --

  /** Tell followers which draft token is open. */
  function tellGuess() {
    view.guess = stage.opened && [stage.opened.seq, stage.opened.position];
    stage.report();
  }

  let ledGuess = "null"; // the presenter's, as it was last opened or closed here
  /** Open what the presenter has opened, as soon as its frame is here, and close it when they do. Only once: it stays
      closed for a follower who closes it. */
  function openAsLed() {
    const guess = JSON.stringify(stage.led?.guess ?? null);
    if (guess === ledGuess) return;
    const [seq, position] = stage.led?.guess ?? [];
    if (seq === undefined) closeVerdict();
    else if (seq > stage.picture.at || position >= places(stage.picture.frames[seq])) return;
    else {
      stage.drawText(stage.picture); // so that the token can be marked
      showVerdict(seq, position);
    }
    ledGuess = guess;
  }

  // A follower who left and comes back sees what is open then.
  document.addEventListener("decode-lab-left", () => (ledGuess = ""));
  document.addEventListener("decode-lab-led", () => view.led ?? (ledGuess = ""));

  /** Open this token of the text, unless it was given. */
  function openToken(mark) {
    const { token } = stage.shown[mark.dataset.index];
    if (token.origin === "prompt" || typeof token === "string") return;
    const seq = stage.picture.frames.findIndex(({ tokens = [] }) => tokens.includes(token));
    openVerdict(seq, stage.picture.frames[seq].tokens.indexOf(token));
  }

  /** Open the verdict of a square of the rounds. A draft token that was never verified leads to the rejected one before it. */
  function openSquare({ x, y }) {
    const seq = stage.picture.frames.findIndex(({ step, tokens }) => step === x && tokens);
    if (seq < 0) return;
    const frame = stage.picture.frames[seq];
    openVerdict(seq, y === 0 ? frame.tokens.length - 1 : Math.min(y, verified(frame)) - 1);
  }

  /** The token before this one, or after it, as far as the run is shown. */
  function nextVerdict(step) {
    let { seq, position } = stage.opened;
    position += step;
    while (position < 0 || position >= places(stage.picture.frames[seq])) {
      seq += step;
      if (seq < 0 || seq > stage.picture.at) return;
      position = step > 0 ? 0 : places(stage.picture.frames[seq]) - 1;
    }
    openVerdict(seq, position);
  }

  stage.plotOf("rounds").addEventListener("drawn", showRound);
  $(".choose").addEventListener("click", () => closeVerdict()); // a chart that is chosen takes the verdict's place
  for (const button of panel.querySelectorAll("[data-verdict]")) {
    button.onclick = () => ({ back: () => nextVerdict(-1), on: () => nextVerdict(1), close: () => closeVerdict() })[button.dataset.verdict]();
  }
  stage.story.addEventListener("click", (event) => {
    const mark = stage.markOf(event.target);
    if (mark) openToken(mark);
  });
  stage.story.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && stage.focusedToken() && !event.ctrlKey && !event.metaKey) openToken(stage.focusedToken());
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !stage.opened) return;
    event.stopImmediatePropagation(); // the run is not stopped
    closeVerdict();
  });

  Object.assign(stage, { openSquare, closeVerdict, drawVerdict, openToken, openWanted, openAsLed });
}
