// What every page's script builds with: elements, charts in the current look, the server's channels, and what the
// browser keeps. It comes after ``setup`` and before all other parts; ``element`` is the component's own.

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

/** Set a text only if it differs: the browser would lay it out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const TONES = 8; // of pool.css: sequences with the same tone still differ by number
const tone = (number) => `tone-${number % TONES}`;

/** A figure with its name. Its meaning (``about``) is shown to whoever points at it (header.js). */
function readout({ key, label, about }) {
  const card = make("div", "readout");
  Object.assign(card, { tabIndex: 0, role: "group", ariaLabel: label });
  Object.assign(card.dataset, { key, about });
  const number = make("div", "number");
  number.append(make("span", "value", "–"), make("span", "unit"));
  card.append(make("div", "label", label), number, make("div", "was"));
  return card;
}

function fillReadout(card, [value, unit = "", was = "", more = ""]) {
  card.dataset.more = more;
  write(card.querySelector(".value"), value);
  write(card.querySelector(".unit"), unit);
  write(card.querySelector(".was"), was);
}

/** Whether a key is pressed with a modifier: then it is the browser's, or the system's. */
const modified = ({ ctrlKey, metaKey, altKey, shiftKey }) => ctrlKey || metaKey || altKey || shiftKey;

/** The keys that a field uses itself, by its type. Those of other types use all. */
const OWN_KEYS = { checkbox: [" "], radio: [" ", "arrowleft", "arrowright"], range: ["arrowleft", "arrowright", "home", "end"] };

/** Whether a key (in lower case) is for what has the focus, which uses it itself: then it is not meant for the page. */
function isForTarget({ target, defaultPrevented }, key) {
  if (defaultPrevented || target.closest("[contenteditable]")) return true;
  if (target.matches("button, summary")) return key === " ";
  return target.matches("input, textarea, select") && (OWN_KEYS[target.type]?.includes(key) ?? true);
}

/** To screen readers a chart is an image, labelled by the texts beside it, whatever they currently say. */
function asPicture(plot) {
  const words = [...plot.closest("[data-chart], figure").querySelectorAll("h2, h3, h4, .caption")];
  for (const node of words) {
    if (node.id) continue;
    body.dataset.named = Number(body.dataset.named ?? 0) + 1; // counted over all scripts, so that ids are unique
    node.id = `beside-${body.dataset.named}`;
  }
  plot.setAttribute("role", "img");
  if (words.length) plot.setAttribute("aria-labelledby", words.map(({ id }) => id).join(" "));
}

/** Call ``draw`` when the look changes between light and dark, and when charts can be drawn. */
function onLook(draw) {
  let worn = look();
  new MutationObserver(() => {
    if (look() === worn) return;
    worn = look();
    draw();
  }).observe(body, { attributes: true, attributeFilter: ["class"] });
  if (!window.Plotly) plotlyScript().addEventListener("load", draw);
}

/** The script that draws charts. It comes after the page: it is three quarters of a first visit's bytes. */
function plotlyScript() {
  const known = document.querySelector("script[src$='plotly.min.js']"); // an exported page's own
  const script = known ?? Object.assign(make("script"), { src: setup.plotly });
  if (!known) document.head.append(script);
  if (body.dataset.charts) return script;
  body.dataset.charts = "coming";
  script.addEventListener("load", () => delete body.dataset.charts);
  script.addEventListener("error", () => (body.dataset.charts = "missing"));
  return script;
}

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const look = () => (body.classList.contains("dark") ? "dark" : "light");

/** Draw a chart. Screen readers get its ``words``, null while it moves, and never the axes' numbers. */
function plotted(plot, traces, layout, words) {
  Plotly.react(plot, traces, layout, CONFIG);
  plot.firstElementChild.ariaHidden = "true";
  plot.ariaDescription = words;
}

/** As in lab/util/messages.py: ``counted(2, "block")`` is "2 blocks". */
const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

/** How many squares there are of each kind. */
function ofEachKind(squares) {
  return squares.filter(({ x }) => x?.length).map(({ name, x }) => `${x.length} ${name}`).join(", ");
}

const MOST_SAID = 10; // most points of a chart that are put into words

/** The hover texts of a chart's main points: of each of a few, and of a curve's highest and last. */
function inWords(traces) {
  const points = traces.filter(({ hovertemplate }) => hovertemplate).flatMap((trace) => {
    const rows = [...(trace.y ?? []).keys()].filter((row) => trace.y[row] !== null && trace.x[row] !== null);
    if (!trace.mode?.includes("lines") && rows.length <= MOST_SAID) return rows.map((row) => toldAt(trace, row));
    if (!trace.hovertemplate.includes("%{y")) return []; // many points, whose texts do not say where they are
    const highest = rows.reduce((best, row) => (trace.y[row] > trace.y[best] ? row : best), rows[0]);
    return [...new Set([highest, rows.at(-1)])].filter((row) => row !== undefined).map((row) => toldAt(trace, row));
  });
  const markup = [...new Set(points)].slice(0, MOST_SAID).join("; ");
  return new DOMParser().parseFromString(markup, "text/html").body.textContent.replace(/\s+/g, " "); // Plotly's texts have some markup
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
  if (form.endsWith(".0f")) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

/** A copy of an empty figure's layout with current values: ``axes`` has them by path, as in "xaxis.range". */
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

/** Make a chart's ``squares`` (traces) small enough not to overlap those of the next column or row. Where there is no
    room for their glyphs, or no time to read them, each has its state's shape, and its panel says what that means. */
function fitSquares(plot, { margin, xaxis, yaxis }, squares, fleeting = false) {
  const share = (pixels, [first, end]) => Math.floor(pixels / (end - first));
  const column = share(plot.clientWidth - margin.l - margin.r, xaxis.range);
  const row = share(plot.clientHeight - margin.t - margin.b, yaxis.range);
  const side = Math.max(1, Math.min(SIDE, column - 2, row - 1));
  const shaped = fleeting || side < GLYPH;
  for (const trace of squares) {
    trace.marker = { ...trace.marker, size: side, ...(shaped && { symbol: trace.meta }) };
    if (shaped) trace.mode = trace.mode?.replace("+text", "");
  }
  plot.parentElement.classList.toggle("shaped", shaped);
}

const SILENT = 15_000; // milliseconds; a channel speaks every five seconds (ALIVE_S)
const PATIENCE = 60_000; // milliseconds; the most that a channel's first word is waited for
const AGAIN = 3000; // milliseconds until a server that did not answer is asked again
const UNREACHED = "The lab does not answer. Trying again …";

/** Read a channel (visualize/jobs/sse_channel.py) to its end. ``gone`` is called at its end, or if there is no such
    channel; ``lost`` when it cannot be reached, and ``found`` when it can again. One that ``rests`` is not read while the
    page is in the background: a browser has six connections to a server, and each page needs one. */
function hearChannel(id, { hear, gone, lost = () => {}, found = () => {}, rests = false }) {
  let stream;
  let last = "";
  let away = false;
  let waiting; // timer for another attempt
  let patience = SILENT; // grows while nothing is heard: over a slow line every answer may begin late, or its first message
  function open() {
    stream?.close();
    stream = new EventSource(`channels/${id}?after=${last}`);
    stream.onopen = answered;
    stream.onmessage = ({ data, lastEventId }) => ((last = lastEventId), alive(), hear(data));
    stream.addEventListener("alive", alive);
    stream.addEventListener("end", () => (close(), gone()));
    stream.onerror = () => {
      lose();
      if (stream.readyState === EventSource.CLOSED) wait(AGAIN, open); // else it reconnects by itself
    };
    wait(patience, giveUp);
  }
  function wait(milliseconds, act) {
    clearTimeout(waiting);
    waiting = setTimeout(act, milliseconds);
  }
  function giveUp() { // a connection may die without a word
    lose();
    patience = Math.min(2 * patience, PATIENCE);
    open();
  }
  function lose() {
    if (!away) lost();
    away = true;
  }
  function alive() {
    patience = SILENT;
    answered();
  }
  function answered() { // over a slow line the first message may come long after that
    wait(patience, giveUp);
    if (away) found();
    away = false;
  }
  function rest() {
    clearTimeout(waiting);
    stream?.close();
  }
  function look() {
    rest();
    if (!document.hidden) open();
  }
  function close() {
    rest();
    document.removeEventListener("visibilitychange", look);
  }
  if (rests) document.addEventListener("visibilitychange", look);
  if (!rests || !document.hidden) open();
  return { close };
}

/** What this browser keeps under a name; null: nothing, or it does not let pages keep anything. */
function kept(name, store = "localStorage") {
  try {
    return window[store].getItem(name);
  } catch {
    return null;
  }
}

/** Copy a node's text. The button says so; or, where that is not allowed, as over plain http to another machine, which
    keys copy it: the text is then selected. */
async function copy(button, node) {
  button.dataset.name ??= button.textContent; // at a second click it says something else
  try {
    await navigator.clipboard.writeText(node.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(node);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => (button.textContent = button.dataset.name), 2000);
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
