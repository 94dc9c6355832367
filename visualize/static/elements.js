// What every page's script builds with: elements, empty charts in the look that is worn, what the server tells, and
// what the browser keeps.
// Put before all other parts, after ``setup``; ``element`` is the component's own.

const $ = (selector) => element.querySelector(selector);
const { body } = document;
const narrow = window.matchMedia("(max-width: 820px)");
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const gently = () => (calm.matches ? "auto" : "smooth"); // how the page scrolls by itself

function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

/** What stands there already is not written again: the browser would lay it out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const TONES = 8; // of pool.css: with its number a sequence is told even where two have the same tone
const tone = (number) => `tone-${number % TONES}`;

/** A figure with its name. What it means (``about``) is told to whoever points at it (header.js). */
function readout({ key, label, about }) {
  const card = make("div", "readout");
  Object.assign(card, { tabIndex: 0, role: "group", ariaLabel: label });
  Object.assign(card.dataset, { key, about });
  const number = make("div", "number");
  number.append(make("span", "value", "–"), make("span", "unit"));
  card.append(make("div", "label", label), number, make("div", "was"));
  return card;
}

function fillReadout(card, [value, unit = "", was = ""]) {
  write(card.querySelector(".value"), value);
  write(card.querySelector(".unit"), unit);
  write(card.querySelector(".was"), was);
}

/** With these a key is the browser's, or the system's. */
const modified = ({ ctrlKey, metaKey, altKey, shiftKey }) => ctrlKey || metaKey || altKey || shiftKey;

/** To those who listen a chart is a picture, called what stands beside it, whatever that says by now. */
function asPicture(plot) {
  const words = [...plot.closest("[data-chart], figure").querySelectorAll("h2, h3, h4, .caption")];
  for (const node of words) {
    if (node.id) continue;
    body.dataset.named = Number(body.dataset.named ?? 0) + 1; // of all scripts together, and never again
    node.id = `beside-${body.dataset.named}`;
  }
  plot.setAttribute("role", "img");
  if (words.length) plot.setAttribute("aria-labelledby", words.map(({ id }) => id).join(" "));
}

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const look = () => (body.classList.contains("dark") ? "dark" : "light");

/** Draw a chart. Who listens is told its ``words``, which one that moves has none of, and never the axes' numbers. */
function plotted(plot, traces, layout, words) {
  Plotly.react(plot, traces, layout, CONFIG);
  plot.firstElementChild.ariaHidden = "true";
  plot.ariaDescription = words;
}

/** How many there are of each kind of squares. */
function counted(squares) {
  return squares.filter(({ x }) => x?.length).map(({ name, x }) => `${x.length} ${name}`).join(", ");
}

const MOST_SAID = 10; // points of a chart

/** What a pointer would be told at a chart's main points: at each of a few, and of a curve at its highest and its last. */
function inWords(traces) {
  const points = traces.filter(({ hovertemplate }) => hovertemplate).flatMap((trace) => {
    const rows = [...(trace.y ?? []).keys()].filter((row) => trace.y[row] !== null && trace.x[row] !== null);
    if (!trace.mode?.includes("lines") && rows.length <= MOST_SAID) return rows.map((row) => toldAt(trace, row));
    if (!trace.hovertemplate.includes("%{y")) return []; // many, and none is told by where it stands
    const highest = rows.reduce((best, row) => (trace.y[row] > trace.y[best] ? row : best), rows[0]);
    return [...new Set([highest, rows.at(-1)])].filter((row) => row !== undefined).map((row) => toldAt(trace, row));
  });
  const markup = [...new Set(points)].slice(0, MOST_SAID).join("; ");
  return new DOMParser().parseFromString(markup, "text/html").body.textContent.replace(/\s+/g, " "); // Plotly's texts are a little markup
}

/** A trace's ``hovertemplate`` with the values of a row in it. */
function toldAt(trace, row) {
  const value = (path, at) => {
    if (path.startsWith("fullData.")) return trace[path.slice("fullData.".length)];
    return at ? trace[path][row][at] : trace[path][row];
  };
  const [, text, name] = trace.hovertemplate.match(/^(.*?)(?:<extra>(.*)<\/extra>)?$/s);
  return [name, text]
    .filter(Boolean)
    .join(", ")
    .replace(/%\{([\w.]+)(?:\[(\d)\])?(?::([^}]*))?\}/g, (_, path, at, form = "") => inDigits(value(path, at), form))
    .replaceAll("<br>", ", ");
}

function inDigits(value, form) {
  if (typeof value !== "number") return value ?? "";
  if (form.endsWith("%")) return `${Number((100 * value).toPrecision(3))}%`;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

/** A copy of an empty figure's layout with what is known by now: ``axes`` has values by path, as in "xaxis.range". */
function laidOut(layout, axes) {
  const whole = structuredClone(layout);
  for (const [path, value] of Object.entries(axes)) {
    const [axis, key] = path.split(".");
    whole[axis][key] = value;
  }
  return whole;
}

const SIDE = 14; // of a square of the rounds, in pixels, where a column has room for it
const GLYPH = 11; // the smallest that a glyph still fits into

/** Make a chart's ``squares`` (traces) as small as they must be not to lie over the next column's. Where that has no room
    for their glyphs, or who looks has no time for them, each has its state's shape, and its panel says what that means. */
function fitSquares(plot, { margin, xaxis }, squares, fleeting = false) {
  const [first, end] = xaxis.range;
  const side = Math.min(SIDE, Math.floor((plot.clientWidth - margin.l - margin.r) / (end - first)) - 2);
  const shaped = fleeting || side < GLYPH;
  for (const trace of squares) {
    trace.marker = { ...trace.marker, size: side, ...(shaped && { symbol: trace.meta }) };
    if (shaped) trace.mode = trace.mode?.replace("+text", "");
  }
  plot.parentElement.classList.toggle("shaped", shaped);
}

/** Hear a channel (visualize/server/channel.py) to its end. ``gone`` is called when there is no such channel any more,
    ``lost`` while it is sought. One that ``rests`` is not heard while the page is in the background: a browser has six
    connections to a server, and each page needs one. */
function hearChannel(id, { hear, gone, lost = () => {}, rests = false }) {
  let stream;
  let last = "";
  function open() {
    stream = new EventSource(`channels/${id}?after=${last}`); // which comes back by itself when the connection was lost
    stream.onmessage = ({ data, lastEventId }) => ((last = lastEventId), hear(data));
    stream.addEventListener("end", end);
    stream.onerror = () => (stream.readyState === EventSource.CLOSED ? end() : lost());
  }
  function look() {
    stream?.close();
    if (!document.hidden) open();
  }
  function close() {
    stream?.close();
    document.removeEventListener("visibilitychange", look);
  }
  const end = () => (close(), gone());
  if (rests) document.addEventListener("visibilitychange", look);
  if (!rests || !document.hidden) open();
  return { close };
}

/** What this browser keeps under a name; null: nothing, or it lets no page keep anything. */
function kept(name, store = "localStorage") {
  try {
    return window[store].getItem(name);
  } catch {
    return null;
  }
}

/** Keep a text, or with null forget it. Returns whether the browser did. */
function keep(name, text, store = "localStorage") {
  try {
    if (text === null) window[store].removeItem(name);
    else window[store].setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
