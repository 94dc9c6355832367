// Draws the sheet of the Memory page from one JSON object (visualize/sheet.py): texts as text, charts by Plotly.
// Gradio runs this once, as a function of (element, props, watch, ...), with ``setup`` put before it.

const { shells, assumed } = setup;
const $ = (selector) => element.querySelector(selector);
const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const look = () => (document.body.classList.contains("dark") ? "dark" : "light");

function make(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

let charts = {};

function read(value) {
  if (!value) return;
  const sheet = JSON.parse(value);
  $(".sheet-say").textContent = sheet.problem ?? sheet.status ?? (sheet.notice || sheet.about);
  $(".sheet-say").classList.toggle("problem", Boolean(sheet.problem || sheet.notice));
  $(".sheet").classList.toggle("stale", !sheet.charts);
  if (!sheet.charts) return;
  $(".readouts").replaceChildren(...sheet.readouts.map(readout));
  $("tbody").replaceChildren(...sheet.formula.map(step));
  $(".source").textContent = sheet.source;
  charts = sheet.charts;
  draw();
}

function readout({ label, value, small, about }) {
  const card = make("div", "readout", "");
  card.title = about;
  card.dataset.key = label;
  const [figure, unit = ""] = value.split(" ");
  const number = make("div", "number", "");
  number.append(make("span", "value", figure), make("span", "unit", unit));
  card.append(make("div", "label", label), number, make("div", "was", small));
  return card;
}

function step({ name, words, numbers, result }) {
  const row = make("tr", "", "");
  const head = make("th", "", name);
  head.scope = "row";
  row.append(head, make("td", "words", words), make("td", "numbers", numbers), make("td", "result", result));
  return row;
}

function draw() {
  for (const [name, { columns, layout }] of Object.entries(charts)) {
    const shell = shells[name][look()];
    const axes = structuredClone(shell.layout);
    for (const [path, value] of Object.entries(layout)) {
      const [axis, key] = path.split(".");
      axes[axis][key] = value;
    }
    // What was zoomed into is no longer there: the axes begin anew with every answer.
    const data = shell.data.map((trace, i) => ({ ...trace, meta: axes.yaxis.ticksuffix, ...columns[i] }));
    Plotly.react($(`[data-chart=${name}] .plot`), data, { ...axes, uirevision: JSON.stringify(layout) }, CONFIG);
  }
}

$(".assumed").textContent = assumed;
let worn = look();
new MutationObserver(() => {
  if (look() === worn) return;
  worn = look();
  draw();
}).observe(document.body, { attributes: true, attributeFilter: ["class"] });
watch("value", () => read(props.value));
read(props.value);
