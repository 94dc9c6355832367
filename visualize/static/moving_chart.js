// Charts of a run that is followed. Plotly.react lays a chart out anew, its axes' labels first, and that takes most of its
// time. Here a chart is laid out once; then only its traces change (Plotly.animate without a redraw) and, when they move,
// its axes. Squares and bars are an outline per trace, not a node each.

import { plotted } from "./chart_panel.js";

const AT_ONCE = { mode: "immediate", frame: { duration: 0, redraw: false }, transition: { duration: 0 } };

/** Draw a chart that moves. ``laid``: while this is the same, nothing but rows and axes differ. ``fit`` gives those of
    ``traces`` that are squares their size, and is called when the chart is laid out. */
export function drawMoving(plot, traces, layout, laid, fit) {
  const { width, height } = plot._fullLayout ?? {};
  const now = `${laid} ${width} ${height}`;
  if (plot.moving?.now !== now) {
    fit();
    plot.moving = { now, side: traces.find(({ meta }) => meta)?.marker.size, axes: rangesOf(layout) };
    return plotted(plot, outlines(plot, traces, layout), layout, null);
  }
  const drawn = outlines(plot, traces, layout);
  const axes = moved(plot, layout);
  if (axes.length) Plotly.relayout(plot, Object.assign({}, ...axes.map((name) => changed(name, layout[name]))));
  const rows = drawn.map(({ x, y, text }) => (Array.isArray(text) ? { x, y, text } : { x, y }));
  Plotly.animate(plot, { data: rows, traces: [...rows.keys()] }, AT_ONCE).catch(() => {}); // the next came before it
}

const rangesOf = (layout) => Object.fromEntries(Object.entries(layout).flatMap(([name, { range } = {}]) => (range ? [[name, String(range)]] : [])));
const changed = (name, { range, tickvals }) => ({ [`${name}.range`]: range, ...(tickvals && { [`${name}.tickvals`]: tickvals }) });

/** The axes that have moved, but for those that a person has panned or zoomed since. */
function moved(plot, layout) {
  const { axes } = plot.moving;
  plot.moving.axes = { ...rangesOf(layout) };
  return Object.keys(axes).filter((name) => axes[name] !== plot.moving.axes[name] && axes[name] === String(plot.layout[name].range));
}

/** A figure's traces as they are drawn while it moves: as many, in another order where bars are stacked. */
function outlines(plot, traces, layout) {
  const bars = traces.filter(({ type }) => type === "bar");
  const stacked = bars.map((_, i) => skyline(bars.slice(0, i + 1))).reverse();
  const kept = steps(traces.filter(({ stackgroup }) => stackgroup));
  return traces.map((trace) => {
    if (trace.meta) return shapes(plot, trace, layout);
    if (trace.type === "bar") return stacked.shift();
    const { hovertemplate, customdata, ...rest } = trace;
    return { ...rest, ...(trace.stackgroup && { x: at(kept, trace.x), y: at(kept, trace.y) }), hoverinfo: "skip" };
  });
}

const at = (rows, values) => rows.map((row) => values[row]);
const filled = (color, x, y, opacity = 1) => ({ type: "scatter", mode: "none", fill: "toself", fillcolor: color, x, y, opacity, hoverinfo: "skip" });

/** The outline of bars on top of each other, in the colour of the last. */
function skyline(bars) {
  const { x, width, marker, yaxis = "y" } = bars.at(-1);
  const top = x.map((_, row) => bars.reduce((sum, { y }) => sum + (y[row] ?? 0), 0));
  const half = width / 2;
  return { ...filled(marker.color, x.flatMap((at) => [at - half, at - half, at + half, at + half]), top.flatMap((y) => [0, y, y, 0])), yaxis };
}

/** The rows at which stacked steps end: in between nothing changes. */
function steps(stack) {
  const last = (stack[0]?.x.length ?? 0) - 1;
  return [...Array(last + 1).keys()].filter((row) => row === 0 || row === last || stack.some(({ y }) => y[row] !== y[row + 1]));
}

const RIM = 0.72; // of a hollow square's half
const SHAPES = {
  square: [[-1, -1], [-1, 1], [1, 1], [1, -1]],
  "square-open": [[-1, -1], [-1, 1], [1, 1], [1, -1], [-1, -1], [-RIM, -RIM], [RIM, -RIM], [RIM, RIM], [-RIM, RIM], [-RIM, -RIM]],
  x: [[-1, -0.5], [-0.5, 0], [-1, 0.5], [-0.5, 1], [0, 0.5], [0.5, 1], [1, 0.5], [0.5, 0], [1, -0.5], [0.5, -1], [0, -0.5], [-0.5, -1]],
  cross: [[-1, -0.4], [-1, 0.4], [-0.4, 0.4], [-0.4, 1], [0.4, 1], [0.4, 0.4], [1, 0.4], [1, -0.4], [0.4, -0.4], [0.4, -1], [-0.4, -1], [-0.4, -0.4]],
  circle: Array.from({ length: 12 }, (_, i) => [Math.cos((i * Math.PI) / 6), Math.sin((i * Math.PI) / 6)]),
};

/** All squares of a trace as one outline: along the chart's foot, up to each, around it, and down the same way. (Slanted ways
    there and back would leave hairs.) */
function shapes(plot, { x, y, marker, meta }, { margin, xaxis, yaxis }) {
  const { width = plot.clientWidth, height = plot.clientHeight } = plot._fullLayout ?? {};
  const half = (pixels, [first, end]) => (plot.moving.side / 2 / pixels) * (end - first);
  const [across, up] = [half(width - margin.l - margin.r, xaxis.range), half(height - margin.t - margin.b, yaxis.range)];
  const around = [...SHAPES[meta], SHAPES[meta][0]];
  const path = x.flatMap((at, row) => {
    const points = around.map(([right, above]) => [at + right * across, y[row] + above * up]);
    const foot = [points[0][0], yaxis.range[0]];
    return [foot, ...points, foot];
  });
  return filled(marker.color, path.map(([x]) => x), path.map(([, y]) => y), marker.opacity);
}
