// Draws a run's transcript: one JSON object a line, growing at its end (visualize/live.py).
// It knows how to append tokens, patch columns and redraw; what they mean was decided in Python.
// Gradio runs this once, as a function of (element, props, watch, ...), with ``setup`` put before it.

const { vocabulary, shells, rolling, parts, readouts } = setup;
const states = vocabulary.states;
const $ = (selector) => element.querySelector(selector);
const charts = Object.keys(shells);
const body = document.body;
const narrow = window.matchMedia("(max-width: 820px)");

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// -- what does not change during a run -----------------------------------------------------

for (const { key, label, about, always } of readouts) {
  const card = make("div", "readout");
  card.hidden = !always;
  card.dataset.key = key;
  card.title = about;
  const number = make("div", "number");
  number.append(make("span", "value", "–"), make("span", "unit"));
  card.append(make("div", "label", label), number, make("div", "was"));
  $(".readouts").append(card);
}

for (const key of vocabulary.legend) {
  const item = make("li", key);
  item.append(make("span", "mark", states[key].glyph || "a"), make("span", "", states[key].label));
  $(".legend").append(item);
}

function drawParts() {
  const colours = parts[look()];
  $(".parts").replaceChildren(
    ...Object.entries(colours).map(([part, colour]) => {
      const item = make("span", part === "speed" ? "part line" : "part", part === "speed" ? "tok/s" : part);
      item.style.setProperty("--part", colour);
      return item;
    }),
  );
}

for (const name of charts) {
  const button = make("button", "", $(`[data-chart=${name}] h2`).textContent);
  button.type = "button";
  button.onclick = () => choose(name);
  button.dataset.for = name;
  $(".choose").append(button);
}

/** On a phone one chart is shown at a time. */
function choose(name) {
  for (const button of $(".choose").children) button.setAttribute("aria-pressed", String(button.dataset.for === name));
  for (const other of charts) $(`[data-chart=${other}]`).classList.toggle("chosen", other === name);
  charts.forEach((chart) => dirty.add(chart));
  draw();
}

// -- a run, built up from its records --------------------------------------------------------

let run, columns, layouts, tokens, sentences;
const dirty = new Set();

function clear() {
  tokens = [];
  $(".text").replaceChildren();
  $(".compared").textContent = $(".notice").textContent = "";
  columns = Object.fromEntries(charts.map((name) => [name, structuredClone(shells[name].start)]));
  layouts = Object.fromEntries(charts.map((name) => [name, {}]));
  charts.forEach((name) => dirty.add(name));
}

/** A run was asked for. What is on the stage stays until the new run has something to show. */
function begin(id) {
  run = { id, read: 0, running: true };
  $(".stage").dataset.run = id;
  sayNow("Waiting for the engine …");
  $(".say").classList.remove("problem");
  body.classList.add("running");
  if (narrow.matches) $(".story").scrollIntoView({ behavior: "smooth", block: "start" });
}

function read(value) {
  const id = value.slice(0, value.indexOf("\n"));
  if (!id) return;
  if (!run || run.id !== id) begin(id);
  const end = value.lastIndexOf("\n") + 1;
  const lines = value.slice(run.read, end).split("\n").filter(Boolean);
  run.read = end;
  const box = $(".text");
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  for (const line of lines) take(JSON.parse(line));
  if (follows) box.scrollTop = box.scrollHeight;
  schedule();
}

function take(record) {
  if (record.status) say(record.status);
  if (record.problem) finish(record.problem, true);
  if (record.seq === undefined) return;
  if (record.head) open(record.head);
  Object.assign(columns, record.columns);
  for (const token of record.tokens ?? []) append(token);
  for (const [name, patches] of Object.entries(record.charts ?? {})) patch(name, patches);
  for (const [name, paths] of Object.entries(record.layout ?? {})) {
    Object.assign(layouts[name], paths);
    dirty.add(name);
  }
  for (const [name, text] of Object.entries(record.captions ?? {})) $(`[data-chart=${name}] .caption`).textContent = text;
  if (record.notice) $(".notice").textContent = record.notice;
  if (record.compared) $(".compared").textContent = record.compared;
  if (record.readouts) show(record.readouts);
  if (record.finished) finish(record.say, record.finished.reason === "error");
  else if (record.say) say(record.say, record.linger);
}

function open(head) {
  clear();
  sentences = head.sentences;
  document.querySelector("#device")?.replaceChildren(
    `${head.target}${head.draft ? ` + ${head.draft}` : ""} · ${head.dtype} · measured on ${head.device}`,
  );
  if (new URLSearchParams(location.search).get("seed") === "") window.decodeLab.address({ seed: head.sampling.seed });
  for (const text of head.prompt) append({ text, origin: "prompt" });
}

function patch(name, patches) {
  for (const [trace, index, row] of patches) {
    for (const [column, value] of Object.entries(row)) {
      const values = (columns[name][trace][column] ??= []);
      if (index === null) values.push(value);
      else values[index] = value;
    }
  }
  dirty.add(name);
}

/** The numbers; a readout that has no row does not matter to this run. */
function show(rows) {
  for (const card of element.querySelectorAll(".readout")) card.hidden = !(card.dataset.key in rows);
  for (const [key, [value, unit, was]] of Object.entries(rows)) {
    const card = $(`[data-key=${key}]`);
    card.querySelector(".value").textContent = value;
    card.querySelector(".unit").textContent = unit;
    card.querySelector(".was").textContent = was;
  }
}

let quietUntil = 0;
let pendingWords;
let pendingLingers = false;
/** The step's sentence, at most three times a second: faster than that nobody reads. What is rare waits its
    turn and lingers, or a room would never see it. */
function say(text, lingers = false) {
  if (pendingLingers && !lingers) return;
  clearTimeout(pendingWords);
  const speak = () => {
    quietUntil = performance.now() + (lingers ? 1500 : 330);
    pendingLingers = false;
    $(".say").textContent = text;
  };
  const wait = quietUntil - performance.now();
  if (wait <= 0) return speak();
  pendingLingers = lingers;
  pendingWords = setTimeout(speak, wait);
}

/** What is said at the beginning and at the end waits for nothing. */
function sayNow(text) {
  quietUntil = 0;
  pendingLingers = false;
  say(text);
}

function finish(text, failed) {
  run.running = false;
  body.classList.remove("running");
  sayNow(text);
  $(".say").classList.toggle("problem", failed);
  charts.forEach((name) => dirty.add(name));
}

// -- the text --------------------------------------------------------------------------------

/** Keeps a word that is several tokens on one line. */
const JOINER = "\u2060";

/** One token: its leading space, the marked word, and above it the glyph and what was refused. */
function append(token) {
  const box = $(".text");
  const [space, word] = [token.text.match(/^ */)[0], token.text.replace(/^ */, "")];
  const mark = make("span", `token ${token.origin}`);
  mark.dataset.index = tokens.push(token) - 1;
  mark.append(make("span", "word", word || "\u2009"));
  mark.append(annotation(token));
  box.append(space || JOINER, mark);
  const breaks = word.split("↵").length - 1;
  if (breaks) box.append("\n".repeat(breaks));
}

function annotation({ origin, refused = [] }) {
  const above = make("span", "above");
  if (refused.length) {
    above.append(`${states.rejected.glyph}`, make("s", "", refused[0].text.trim() || refused[0].text));
    if (refused.length > 1) above.append(make("span", "more", `+${refused.length - 1}`));
  } else if (origin !== "plain") {
    above.append(states[origin].glyph);
  }
  return above;
}

const number = (value) => (value === undefined ? "" : value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1));

/** What the run's head says of a state, with a token's numbers in it. */
function sentence(state, values) {
  const filled = { ...values, ratio: values.q ? values.p / values.q : undefined };
  return sentences[state].replace(/\{(\w+)\}/g, (_, name) => number(filled[name]));
}

function explain(mark) {
  const token = tokens[mark.dataset.index];
  const tip = $(".tip");
  const line = (state, text, words) => {
    const row = make("p", state);
    row.append(make("b", "", `“${text}” ${states[state].glyph}`), ` ${states[state].label}. ${words}`);
    return row;
  };
  const refused = (token.refused ?? []).map((guess) => {
    const state = guess.p === undefined ? "unjudged" : "rejected";
    return line(state, guess.text, sentence(state, guess));
  });
  tip.replaceChildren(line(token.origin, token.text, token.note ?? sentence(token.origin, token)), ...refused);
  tip.hidden = false;
  const at = mark.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const first = $(".stage").getBoundingClientRect().left + 4;
  const left = Math.min(Math.max(first, at.left + at.width / 2 - box.width / 2), innerWidth - box.width - 8);
  const below = at.bottom + 8 + box.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 8 : at.top - box.height - 8}px`;
}

const hideTip = () => ($(".tip").hidden = true);
const story = $(".text");
story.addEventListener("pointerover", (event) => {
  const mark = event.target.closest(".token");
  if (mark) explain(mark);
  else hideTip();
});
story.addEventListener("pointerleave", hideTip);
story.addEventListener("scroll", hideTip);
story.addEventListener("blur", () => focusOn(null));

let focused = null;
function focusOn(mark) {
  focused?.classList.remove("focused");
  focused = mark;
  if (!mark) return hideTip();
  mark.classList.add("focused");
  mark.scrollIntoView({ block: "nearest" });
  explain(mark);
}

story.addEventListener("keydown", (event) => {
  const marks = [...story.querySelectorAll(".token")];
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined || !marks.length) return;
  event.preventDefault();
  const from = focused?.isConnected ? marks.indexOf(focused) : step > 0 ? -1 : marks.length;
  focusOn(marks[Math.min(Math.max(from + step, 0), marks.length - 1)]);
});

// -- the charts ------------------------------------------------------------------------------

const look = () => (body.classList.contains("dark") ? "dark" : "light");
const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };

let scheduled = false;
let rested = 0;
/** Draws with the next animation frame, but rests as long as it drew: a slow browser then shows fewer frames, not old ones. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => requestAnimationFrame(() => {
    const began = performance.now();
    scheduled = false;
    draw();
    rested = 2 * performance.now() - began;
  }), Math.max(0, rested - performance.now()));
}

function draw() {
  for (const name of dirty) {
    const plot = $(`[data-chart=${name}] .plot`);
    if (narrow.matches && !plot.parentElement.classList.contains("chosen")) continue;
    const shell = shells[name][look()];
    const layout = structuredClone(shell.layout);
    for (const [path, value] of Object.entries(layouts[name])) {
      const [axis, key] = path.split(".");
      layout[axis][key] = value;
    }
    const first = run?.running && rolling.includes(name) ? layout.xaxis.range[0] : -Infinity;
    Plotly.react(plot, shell.data.map((trace, i) => filled(trace, columns[name][i], first)), layout, CONFIG);
    dirty.delete(name);
  }
}

/** A trace with its rows: those that have a y, and while a run goes on only those in view. */
function filled(trace, values, first) {
  const kept = (_, row) => values.y[row] !== null && values.x[row] >= first - 1;
  const { color, pattern, ...rest } = Object.fromEntries(Object.entries(values).map(([column, list]) => [column, list.filter(kept)]));
  const marker = { ...trace.marker, ...(color && { color }) };
  if (pattern) marker.pattern = { ...marker.pattern, shape: pattern };
  return { ...trace, ...rest, marker };
}

// -- light and dark, keys ----------------------------------------------------------------------

new MutationObserver(() => {
  if (look() === worn) return;
  worn = look();
  drawParts();
  charts.forEach((name) => dirty.add(name));
  schedule();
}).observe(body, { attributes: true, attributeFilter: ["class"] });
let worn = look();

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    document.querySelector("#run").click();
  } else if (event.key === "Escape" && run?.running) {
    document.querySelector("#stop").click();
  }
});

const hint = [...$(".text").childNodes];
clear();
$(".text").append(...hint);
drawParts();
choose(charts[0]);
watch("value", () => read(props.value ?? ""));
read(props.value ?? "");
