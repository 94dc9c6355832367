// Charts: empty figures (visualize/charts) filled with data, in the current look, by Plotly.

import { initialQuery } from "./address.js";
import { body, labelAsImage, make } from "./dom.js";
import { offerChart } from "./pictures.js";

/** Call ``draw`` when the look changes between light and dark, and when charts can be drawn. */
export function onLook(draw) {
  let worn = look();
  new MutationObserver(() => {
    if (look() === worn) return;
    worn = look();
    draw();
  }).observe(body, { attributes: true, attributeFilter: ["class"] });
  if (!window.Plotly) plotlyScript().addEventListener("load", draw);
}

const FILM_FIRST = 700; // milliseconds: to run the script, and to draw, takes the page's time while its opening begins to move
let wanted = null; // the script, once it is asked for

/** The script that draws charts. It comes after the page: it is three quarters of a first visit's bytes. */
function plotlyScript() {
  if (wanted) return wanted;
  const known = document.querySelector("script[src$='plotly.min.js']"); // an exported page's own
  const { content } = document.querySelector("meta[name=plotly]") ?? {};
  wanted = known ?? Object.assign(make("script"), { src: content });
  body.dataset.charts = "coming";
  wanted.addEventListener("load", () => delete body.dataset.charts);
  wanted.addEventListener("error", () => (body.dataset.charts = "missing"));
  const opens = !initialQuery.size && document.querySelector(".staged");
  if (!known) setTimeout(() => document.head.append(wanted), opens ? FILM_FIRST : 0);
  return wanted;
}

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
export const look = () => (body.classList.contains("dark") ? "dark" : "light");

/** Draw a chart. Screen readers get its ``words``, null while it moves, and never the axes' numbers. */
export function plotted(plot, traces, layout, words) {
  Plotly.react(plot, traces, layout, CONFIG);
  plot.firstElementChild.ariaHidden = "true";
  plot.ariaDescription = words;
  offerChart(plot);
  sized.observe(plot);
}

/** How many squares there are of each kind. */
export function ofEachKind(squares) {
  return squares.filter(({ x }) => x?.length).map(({ name, x }) => `${x.length} ${name}`).join(", ");
}

const MOST_SAID = 10; // most points of a chart that are put into words

/** The hover texts of a chart's main points: of each of a few, and of a curve's highest and last. */
export function inWords(traces) {
  const points = traces.filter(({ hovertemplate }) => hovertemplate).flatMap((trace) => {
    const rows = [...(trace.y ?? []).keys()].filter((row) => trace.y[row] !== null && trace.x[row] !== null);
    if (!trace.mode?.includes("lines") && rows.length <= MOST_SAID) return rows.map((row) => hoverText(trace, row));
    if (!trace.hovertemplate.includes("%{y")) return []; // many points, whose texts do not say where they are
    const highest = rows.reduce((best, row) => (trace.y[row] > trace.y[best] ? row : best), rows[0]);
    return [...new Set([highest, rows.at(-1)])].filter((row) => row !== undefined).map((row) => hoverText(trace, row));
  });
  const markup = [...new Set(points)].slice(0, MOST_SAID).join("; ");
  return new DOMParser().parseFromString(markup, "text/html").body.textContent.replace(/\s+/g, " "); // Plotly's texts have some markup
}

/** A trace's ``hovertemplate`` with the values of a row in it. */
function hoverText(trace, row) {
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

/** A copy of an empty figure's layout with current values: ``axes`` has them by path, as in "xaxis.range" or "barmode". */
export function laidOut(layout, axes) {
  const whole = structuredClone(layout);
  for (const [path, value] of Object.entries(axes)) {
    const [axis, key] = path.split(".");
    if (key) whole[axis][key] = value;
    else whole[axis] = value;
  }
  return whole;
}

const SIDE = 14; // of a square of the rounds, in pixels, where a column has room for it
const GLYPH = 11; // the smallest that a glyph still fits into

/** Make a chart's ``squares`` (traces) small enough not to overlap those of the next column or row. Where there is no
    room for their glyphs, or no time to read them, each has its state's shape, and its panel says what that means. */
export function fitSquares(plot, { margin, xaxis, yaxis }, squares, fleeting = false) {
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

/** A panel may change its size when its surroundings do; Plotly watches only the window. */
const sized = new ResizeObserver((seen) => {
  for (const { target, contentRect } of seen) {
    const drawn = target.offsetParent && target._fullLayout;
    if (drawn && Math.hypot(contentRect.width - drawn.width, contentRect.height - drawn.height) > 1) Plotly.Plots.resize(target);
  }
});

const GREY = "#8d96a5";
/** Traces of an earlier measurement, in grey, to stand behind one: without its words. */
function behind(shell, { columns }) {
  const grey = (trace, i) => ({
    ...trace, ...columns[i], opacity: 0.38, showlegend: false, hoverinfo: "skip", hovertemplate: null, mode: trace.mode?.replace("+text", ""),
    ...(trace.width && { width: 1.4 * trace.width }),
    marker: { ...trace.marker, color: GREY, line: { width: 0 } },
    line: { ...trace.line, color: GREY },
    ...(trace.type === "bar" && { text: null, line: undefined }),
  });
  return shell.data.map(grey).filter(({ mode, x }) => mode !== "text" && x?.length);
}

/** Axes wide enough for both. */
function wider(layout, other) {
  const whole = { ...layout, barmode: "overlay" };
  for (const [path, [low, high]] of Object.entries(layout).filter(([path]) => path.endsWith(".range"))) {
    const [from, to] = other[path] ?? [low, high];
    if (low < high) whole[path] = [Math.min(low, from), Math.max(high, to)];
  }
  return whole;
}

/** Draw a figure with data and axes in the panel of that name within ``element``. ``shells``: empty figures by name and
    look; ``shell``: the name of this one, if it differs; ``reference``: columns and layout of an earlier measurement. */
export function drawChart(element, shells, name, { columns, layout: own, shell: form = name, reference }) {
  const plot = element.querySelector(`[data-chart=${name}] .plot`);
  if (!plot.offsetParent || !window.Plotly) return; // drawn when it is in view, and Plotly there
  if (!plot.role) labelAsImage(plot);
  const shell = shells[form][look()];
  const layout = reference ? wider(own, reference.layout) : own;
  const axes = laidOut(shell.layout, layout);
  // Zooming lasts until an answer has other axes.
  const stretch = reference ? layout["xaxis.range"]?.[1] / own["xaxis.range"]?.[1] : 1; // a column of texts stays at the edge
  const placed = ({ mode }, { x, ...rest }) => (mode === "text" && new Set(x).size === 1 ? { x: x.map((at) => at * stretch), ...rest } : { x, ...rest });
  const data = shell.data.map((trace, i) => ({ ...trace, meta: trace.meta ?? axes.yaxis.ticksuffix, ...placed(trace, columns[i]) }));
  const squares = data.filter((_, i) => shell.data[i].meta);
  if (squares.length) fitSquares(plot, axes, squares);
  const all = reference ? [...behind(shell, reference), ...data] : data;
  plotted(plot, all, { ...axes, uirevision: JSON.stringify(layout) }, squares.length ? ofEachKind(squares) : inWords(data));
}

/** Keep a page's charts by name: ``show`` draws what has changed with the next animation frame, and ``draw`` all, as when
    the look changes or they come into view. */
export function chartsOf(element, shells) {
  const charts = {};
  const dirty = new Set();
  function show(changed) {
    Object.assign(charts, changed);
    if (!dirty.size) requestAnimationFrame(flush);
    Object.keys(changed).forEach((name) => dirty.add(name));
  }
  function flush() {
    for (const name of dirty) if (charts[name]) drawChart(element, shells, name, charts[name]);
    dirty.clear();
  }
  function clear() {
    Object.keys(charts).forEach((name) => delete charts[name]);
  }
  const draw = () => show(charts);
  onLook(draw);
  return { charts, show, draw, clear };
}
