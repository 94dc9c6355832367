// Draws the Server page: what is told of the server (visualize/vllm/watched.py) and of one's own prompt (visualize/vllm/remote.py),
// each in a channel of its own. Gradio runs this once, as a function of (element, props, watch, ...), with ``setup`` and
// sheet.js put before it.

const { shells, readouts } = setup;
const columns = Object.fromEntries(Object.entries(shells).map(([name, { start }]) => [name, structuredClone(start)]));
const layouts = Object.fromEntries(Object.keys(shells).map((name) => [name, {}]));
const dirty = new Set(Object.keys(shells));

for (const { key, label, about } of readouts) {
  const card = make("div", "readout");
  card.dataset.key = key;
  Object.assign(card, { tabIndex: 0 }).dataset.about = about;
  const number = make("div", "number");
  number.append(make("span", "value", "–"), make("span", "unit"));
  card.append(make("div", "label", label), number, make("div", "was"));
  $(".readouts").append(card);
}

function say(selector, text, problem = false) {
  write($(selector), text);
  $(selector).classList.toggle("problem", problem);
}

/** A line's new points; those that are out of view for good are forgotten. */
function append(points, layout) {
  for (const [name, patches] of Object.entries(points)) {
    const [first] = layout[name]["xaxis.range"];
    for (const [trace, , { x, y }] of patches) {
      const line = columns[name][trace];
      line.x.push(x);
      line.y.push(y);
      while (line.x[0] < first - 5) (line.x.shift(), line.y.shift());
    }
  }
}

function take({ points, layout, charts, readouts, say: text, problem }) {
  if (points) append(points, layout);
  for (const [name, axes] of Object.entries(layout ?? {})) change(name, columns[name], axes);
  for (const [name, chart] of Object.entries(charts ?? {})) change(name, chart.columns, chart.layout);
  for (const [key, [value, unit, small]] of Object.entries(readouts ?? {})) {
    const card = $(`[data-key=${key}]`);
    write(card.querySelector(".value"), value);
    write(card.querySelector(".unit"), unit);
    write(card.querySelector(".was"), small);
  }
  $(".readouts").classList.toggle("old", Boolean(problem));
  say(".sheet-say", text, problem);
}

function change(name, now, axes) {
  columns[name] = now;
  layouts[name] = axes;
  dirty.add(name);
  draw();
}

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const name of dirty) drawChart(name, { columns: columns[name], layout: layouts[name] });
    dirty.clear();
  });
}

/** Hear a channel to its end. ``gone`` is called when there is no such channel any more, ``lost`` while it is sought. */
function listen(id, hear, gone, lost = () => {}) {
  const stream = new EventSource(`channels/${id}`); // which comes back by itself when the connection was lost
  stream.onmessage = ({ data }) => hear(JSON.parse(data));
  stream.addEventListener("end", () => (stream.close(), gone()));
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) gone();
    else lost();
  };
  return stream;
}

// -- one's own prompt ------------------------------------------------------------------------------

let answer;
let began = false; // the first token has come
function begin(id, prompt) {
  answer?.close();
  began = false;
  $(".answer-text").replaceChildren(make("span", "prompt", prompt));
  say(".answer-say", "Sent. Waiting for the first token …");
  say(".rounds-say", "Told when the answer has ended.");
  change("rounds", structuredClone(shells.rounds.start), {});
  document.body.classList.add("running");
  answer = listen(id, answered, () => {
    if (document.body.classList.contains("running")) say(".answer-say", "The lab no longer tells of this answer. Send it again.", true);
    document.body.classList.remove("running");
  });
}

function answered({ text, say: words, problem, rounds, charts }) {
  const box = $(".answer-text");
  if (text) {
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    if (!began) say(".answer-say", "The answer comes …");
    began = true;
    box.append(text); // as text
    if (follows) box.scrollTop = box.scrollHeight;
  }
  if (rounds) say(".rounds-say", rounds);
  if (charts) change("rounds", charts.rounds.columns, charts.rounds.layout);
  if (!words) return;
  say(".answer-say", words, problem);
  document.body.classList.remove("running"); // these were its last words
}

// -- what Gradio says: which channels there are ----------------------------------------------------

let watched;
let last = "";
function read(value) {
  if (!value || value === last) return;
  last = value;
  const { watch: id, answer, prompt, problem } = JSON.parse(value);
  if (id !== watched) {
    watched = id;
    const old = (why) => {
      $(".readouts").classList.add("old");
      say(".sheet-say", why, true);
    };
    const gone = () => old("The lab no longer tells of this server: it has ended, or was started anew. Reload this page.");
    listen(id, take, gone, () => old("The lab does not answer. Trying again …"));
  }
  if (problem) say(".answer-say", problem, true);
  if (answer) begin(answer, prompt);
}

onLook(() => {
  Object.keys(shells).forEach((name) => dirty.add(name));
  draw();
});
draw();
watch("value", () => read(props.value));
read(props.value);
