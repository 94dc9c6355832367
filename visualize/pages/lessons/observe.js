// The progress of a lesson's run, the prediction's outcome, and the charts (visualize/pages/lessons/observation.py).

import { progressOf, showGate } from "../../static/announce.js";
import { BlockGrid } from "../../static/block_grid.js";
import { chartsOf } from "../../static/chart_panel.js";
import { gently, make, within, write } from "../../static/dom.js";
import { Race } from "../../static/race.js";
import { readRecords } from "../../static/sse.js";
import { sliderOf } from "./question.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const shells = {};
  const race = new Race($(".race"), setup.vocabulary);
  const tell = progressOf(element);
  const charts = chartsOf(element, shells);

  function read(record) {
    if (!record) return;
    tell(record);
    fill(record.running ? record.pool : null);
    if (record.running || record.gate) showGate($(".gate"), record.gate);
    carries = record.carries ?? carries;
    $(".instead").hidden = !carries || !(record.running || record.ready) || record.over;
    write($(".instead span"), carries);
    if (record.running) race.stop();
    if (record.over === undefined) return;
    const hint = (progress) => tell({ running: record.running, progress });
    $(".found").hidden = !record.over;
    if (!record.over) return hint(record.ready ? "" : "Give your prediction. Then you can run it.");
    $(".outcome").textContent = record.said;
    $(".outcome").className = `outcome ${record.kind}`;
    $(".feedback").textContent = record.feedback;
    if (!record.panels) return hint("This browser did not keep the charts of this run. Run again to see them.");
    show(record.panels, record.fresh);
    if (record.recorded) hint(`Recorded: ${record.recorded}. Press Run to measure here.`);
    else if (!record.fresh) hint("Your last run, kept in this browser. Run again for another.");
    if (!record.fresh && !record.recorded) return;
    $(".found").scrollIntoView({ behavior: gently(), block: "start" });
  }

  let carries = ""; // the machine whose run can be taken in place of one here
  $(".instead button").onclick = () => gradio.trigger("submit");
  let grid;
  /** Show the pool of the run under way as it fills. */
  function fill(pool) {
    const begins = pool && $(".filling").hidden;
    $(".filling").hidden = !pool;
    if (!pool) return;
    if (begins) $(".filling").scrollIntoView({ behavior: gently(), block: "nearest" });
    grid ??= new BlockGrid($(".squares"), () => grid.draw(grid.pool, grid.size, new Map()));
    write($(".filling .caption"), pool.caption);
    grid.draw(pool.rows, pool.size, new Map());
  }

  function show(panels, fresh) {
    charts.clear();
    $(".raced").hidden = !panels.some((panel) => panel.race);
    for (const plot of element.querySelectorAll(".panels .js-plotly-plot")) Plotly.purge(plot); // else the window keeps it for ever
    $(".panels").replaceChildren(...panels.filter((panel) => !panel.race).map(figure));
    for (const panel of panels) {
      if (!panel.race) continue;
      $(".raced .see").textContent = panel.say;
      race.load(panel.race, fresh);
    }
  }

  function figure(panel, i) {
    const kind = panel.overlap ? "panel wide" : panel.chart ? "panel" : "said-only";
    const node = make("figure", kind, make("figcaption", "panel-head", make("h3", "", panel.title)));
    if (panel.chart) {
      const name = (node.dataset.chart = `chart-${i}`);
      shells[name] = setup.shells[panel.view];
      const plot = make("div", "plot");
      if (panel.view === "bars") plot.style.height = `${24 + 54 * panel.chart.columns[0].x.length}px`;
      node.append(plot);
      charts.show({ [name]: panel.chart });
    }
    node.append(make("p", "see", panel.say));
    if (panel.overlap) node.append(overlap(panel.overlap));
    return node;
  }

  const HEADS = { proposed: "Proposed words (q), against p", written: "Written words, against p" };

  /** p and q, with a rule to choose and q to move. The record contains every possible picture. */
  function overlap({ rules, stops, start, frames, layout }) {
    const inputs = rules.map((_, i) =>
      make("input", { type: "radio", name: "overlap-rule", checked: i === 0, onchange: show }));
    const labels = inputs.map((input, i) => make("label", "", input, make("span", "", rules[i])));
    const choices = make("div", { className: "choices", role: "radiogroup", ariaLabel: "Rule" }, ...labels);
    const far = "How far q is from p";
    const move = make("input", { type: "range", max: stops.length - 1, value: start, oninput: show, ariaLabel: far });
    const { slider, output } = sliderOf(far, move, "q is p", "less like p");
    const pair = Object.entries(HEADS).map(([name, head]) => {
      shells[name] = setup.shells[name];
      return make("div", { dataset: { chart: name } }, make("h4", "", head), make("div", "plot"));
    });
    const said = make("p", { className: "said-of", role: "status" });

    function show() {
      const frame = frames[inputs.findIndex((input) => input.checked)][move.value];
      charts.show(Object.fromEntries(Object.keys(HEADS).map((name) => [name, { columns: frame[name], layout }])));
      said.textContent = frame.said;
      output.textContent = stops[move.value] + (Number(move.value) === start ? ", as in your run" : "");
      move.ariaValueText = output.textContent;
    }
    show();
    const controls = make("div", "controls", choices, slider);
    return make("div", "overlap", controls, make("div", "pair", ...pair), said);
  }

  readRecords(gradio, read);
}
