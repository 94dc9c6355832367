// The stage's charts.

import { updateAddress } from "./address.js";
import { fitSquares, inWords, laidOut, look, ofEachKind, plotted } from "./chart_panel.js";
import { body, labelAsImage, make, narrow, within, write } from "./dom.js";
import { drawMoving } from "./moving_chart.js";

/** Draw the stage's charts as frames change their columns: Plotly redraws those that have changed. */
export function addCharts(stage) {
  const { element, charts, shells, dirty } = stage;
  const { rolling } = stage.setup;
  const $ = within(element);

  for (const name of charts) {
    const button = make("button", "", $(`[data-chart=${name}] h2`).textContent);
    button.type = "button";
    button.onclick = () => {
      choose(name);
      updateAddress({ chart: name === charts[0] ? null : name });
    };
    button.dataset.for = name;
    $(".choose").append(button);
  }
  element.querySelectorAll(".plot").forEach(labelAsImage);

  /** On a phone one chart is shown at a time. */
  function choose(name) {
    for (const button of $(".choose").children) button.setAttribute("aria-pressed", String(button.dataset.for === name));
    for (const other of charts) $(`[data-chart=${other}]`).classList.toggle("chosen", other === name);
    charts.forEach((chart) => dirty.add(chart));
    sheets.clear();
    stage.draw();
  }

  const TURN = 30; // milliseconds after which the next charts of a run that is followed wait for the next picture
  const APART = 140; // milliseconds between two pictures of a chart of a run that is followed: the engine needs the time
  const drawnAt = new Map();
  stage.chartsDue = 0; // when charts of a run that is played may be drawn again
  const drawnOf = new Map(); // by chart: the run that it was last drawn from

  /** Redraw what is dirty. While the picture moves, first the chart that has waited longest. Of a run that is played, only
      that, and then none for as long as it took: half of the page's time is left for clicks. Until its turn comes, a chart
      of another run is hidden. */
  function drawCharts({ columns, layouts, captions }) {
    const began = performance.now();
    let due = !stage.moving() || stage.live() || began >= stage.chartsDue;
    for (const name of [...dirty]) {
      if (inSight(name) && !unveil(name)) {
        const soon = stage.live() && began - (drawnAt.get(name) ?? 0) < APART;
        if (!due || soon || !window.Plotly) {
          if (drawnOf.has(name) && drawnOf.get(name) !== stage.picture) hide(name);
          continue;
        }
        if (rolls(name)) layOut(name);
        else plotChart(plotOf(name), shells[name][look()], columns[name], layouts[name], rolling.includes(name) && stage.moving(), stage.live() && !legible(stage.picture.frame));
        plotOf(name).dispatchEvent(new Event("drawn"));
        plotOf(name).classList.remove("older");
        drawnOf.set(name, stage.picture);
        drawnAt.set(name, began);
        due = stage.live() ? performance.now() < began + TURN : !stage.moving();
        stage.chartsDue = 2 * performance.now() - began;
      }
      if (captions[name] !== undefined) caption(captionOf(name), captions[name]);
      dirty.delete(name);
    }
  }

  /** Hide a chart, and its caption if that is of the run: others are legends, and stay. */
  function hide(name) {
    plotOf(name).classList.add("older");
    if (drawnOf.get(name).captions[name] !== undefined) caption(captionOf(name), "");
  }

  /** Set a chart's caption; where it is cut off, all of it is shown on hover. */
  function caption(node, text) {
    write(node, text);
    if (node.title !== text) node.title = text;
  }

  const plotOf = (name) => $(`[data-chart=${name}] .plot`);
  const captionOf = (name) => $(`[data-chart=${name}] .caption`);

  /** Whether this is a chart (tables are drawn by the page itself) that is in view and not covered. */
  function inSight(name) {
    if (!charts.includes(name) || stage.covered(name)) return false;
    return !(narrow.matches || body.classList.contains("presenting")) || plotOf(name).parentElement.classList.contains("chosen");
  }

  // While a run is played, a chart whose window rolls on is drawn once for all instants of the window: a sheet. From one
  // instant to the next only the veil moves, which covers what has not happened yet.

  const sheets = new Map(); // by chart: the window that was drawn, and the last frame that is in it
  const rolls = (name) => stage.mode === "playing" && rolling.includes(name);
  const windowOf = (name) => stage.picture.layouts[name]["xaxis.range"] ?? shells[name][look()].layout.xaxis.range;
  const sheetOf = (name) => [windowOf(name), look(), stage.pans].join();

  function layOut(name) {
    const { at, frames } = stage.picture;
    let last = at;
    while (last < stage.picture.last && frames[last + 1].step <= windowOf(name)[1]) last += 1;
    sheets.set(name, { key: sheetOf(name), last });
    stage.picture.glance(last, ({ columns, layouts }) => plotChart(plotOf(name), shells[name][look()], columns[name], layouts[name], true));
    unveil(name);
  }

  /** Whether the chart's sheet contains this instant; if so, move its veil there. */
  function unveil(name) {
    const sheet = sheets.get(name);
    if (!rolls(name) || sheet?.key !== sheetOf(name) || sheet.last < stage.picture.at) {
      sheets.delete(name);
      return false;
    }
    veil(plotOf(name), Math.max(...stage.picture.columns[name].map(({ x }) => x.at(-1) ?? -Infinity)) + 0.5);
    return true;
  }

  const veiled = (plot, { x }) => x > plot.until;

  /** Clip a chart's rows right of ``x``, but not its axes, nor words that begin left of it. What is under the veil cannot be
      pointed at. */
  function veil(plot, x) {
    if (plot.until === undefined) {
      plot.on("plotly_hover", ({ points }) => veiled(plot, points[0]) && Plotly.Fx.unhover(plot));
      plot.on("plotly_afterplot", () => plot.until < Infinity && cover(plot)); // another size takes the veil away
    }
    plot.until = x; // where its veil begins
    cover(plot);
  }

  function cover(plot) {
    const x = plot.until;
    plot.classList.toggle("untold", plot.data.some(({ mode, x: at }) => mode === "text" && at?.some((one) => one > x)));
    const { range, _length: width } = plot._fullLayout.xaxis;
    const share = Math.min(Math.max((x - range[0]) / (range[1] - range[0]), 0), 1);
    for (const clip of plot.querySelectorAll("clipPath.plotclip rect")) clip.setAttribute("width", share * width);
  }

  const LEGIBLE = 80; // milliseconds per pass: what is seen for less needs no glyphs, which take half of a chart's time
  const legible = (frame) => !frame || (stage.mode === "playing" ? stage.shownFor() : frame.t_ms / Math.max(1, frame.step)) > LEGIBLE;

  /** Draw a chart: its empty figure with the current axes and rows; all rows or, if it ``moves``, those in view. One that is
      ``swift`` is drawn so often that only what differs is drawn again. */
  function plotChart(plot, shell, columns, axes, moves = false, swift = false) {
    const layout = laidOut(shell.layout, axes);
    for (const axis of Object.values(layout)) if (axis.range) axis.ticklabeloverflow = "allow"; // else Plotly measures every label for every label
    layout.uirevision = stage.pans;
    const first = moves ? layout.xaxis.range[0] : -Infinity;
    const traces = shell.data.map((trace, i) => filled(trace, columns[i], first));
    const squares = traces.filter(({ meta }) => meta);
    const fit = () => squares.length && fitSquares(plot, layout, squares, swift || (moves && !legible(stage.picture.frame)));
    if (swift) return drawMoving(plot, traces, layout, `${look()} ${stage.pans}`, fit);
    fit();
    plot.moving = null;
    plotted(plot, traces, layout, stage.moving() ? null : squares.length ? ofEachKind(squares) : inWords(traces));
    veil(plot, Infinity);
  }

  // Another width means squares of another size, and on a phone another chart.
  window.addEventListener("resize", () => {
    charts.forEach((name) => dirty.add(name));
    stage.schedule();
  });

  /** A trace with its rows: those that have a y, and none left of ``first``. */
  function filled(trace, values, first) {
    const kept = (_, row) => values.y[row] !== null && values.x[row] >= first - 1;
    const { color, pattern, ...rest } = Object.fromEntries(Object.entries(values).map(([column, list]) => [column, list.filter(kept)]));
    const marker = { ...trace.marker, ...(color && { color }) };
    if (pattern) marker.pattern = { ...marker.pattern, shape: pattern };
    return { ...trace, ...rest, marker };
  }

  Object.assign(stage, { choose, plotOf, plotChart, veiled, drawCharts });
}
