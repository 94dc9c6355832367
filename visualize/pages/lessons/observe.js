// The progress of a lesson's run, the prediction's outcome, and the charts (visualize/pages/lessons/observation.py).

import { progressAnnouncer } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { body, gently, make, within } from "../../static/dom.js";
import { Race } from "../../static/race.js";
import { recordReader } from "../../static/sse.js";

export function mount(element, { props, watch }, setup) {
  const $ = within(element);
  const shells = {};
  const race = new Race($(".race"), setup.vocabulary);
  const announce = progressAnnouncer(element);
  let charts = {};

  function read(record) {
    busy(record);
    if (record.over === undefined) return;
    $(".found").hidden = !record.over;
    if (!record.over) return hint(record.ready ? "" : "Say what you expect. Then you can run it.");
    $(".outcome").textContent = record.said;
    $(".outcome").className = `outcome ${record.kind}`;
    $(".feedback").textContent = record.feedback;
    if (!record.panels) return hint("The charts of this run were not kept in this browser. Run again to see them.");
    show(record.panels, record.fresh);
    if (!record.fresh) return hint("This is your last run, kept in this browser. Run again for another.");
    $(".found").scrollIntoView({ behavior: gently(), block: "start" });
  }

  /** The progress while it runs, and the problem if it breaks off. */
  function busy({ running = false, progress = "", share, problem }) {
    body.classList.toggle("running", running);
    hint(problem ?? progress, Boolean(problem), running);
    $(".bar").hidden = !running;
    $(".bar i").style.width = `${100 * (share ?? 0)}%`;
    if (running) race.stop();
  }

  function hint(text, failed = false, underWay = false) {
    announce(text, underWay);
    $(".progress").classList.toggle("problem", failed);
  }

  function show(panels, fresh) {
    charts = {};
    $(".raced").hidden = !panels.some((panel) => panel.race);
    for (const plot of element.querySelectorAll(".panels .js-plotly-plot")) Plotly.purge(plot); // else the window keeps it for ever
    $(".panels").replaceChildren(...panels.filter((panel) => !panel.race).map(figure));
    for (const panel of panels) {
      if (!panel.race) continue;
      $(".raced .see").textContent = panel.say;
      race.load(panel.race, fresh);
    }
    draw();
  }

  function figure(panel, i) {
    const node = make("figure", panel.overlap ? "panel wide" : panel.chart ? "panel" : "said-only");
    const head = make("figcaption", "panel-head");
    head.append(make("h3", "", panel.title));
    node.append(head);
    if (panel.chart) {
      const name = `chart-${i}`;
      node.dataset.chart = name;
      shells[name] = setup.shells[panel.view];
      charts[name] = panel.chart;
      const plot = make("div", "plot");
      if (panel.view === "bars") plot.style.height = `${24 + 54 * panel.chart.columns[0].x.length}px`;
      node.append(plot);
    }
    node.append(make("p", "see", panel.say));
    if (panel.overlap) node.append(overlap(panel.overlap));
    return node;
  }

  const HEADS = { proposed: "What is proposed (q), against p", written: "What comes out, against p" };

  /** p and q, with a rule to choose and q to move. The record contains every possible picture. */
  function overlap({ rules, stops, start, frames, layout }) {
    const box = make("div", "overlap");
    const inputs = rules.map((name, i) => {
      const input = make("input");
      Object.assign(input, { type: "radio", name: "overlap-rule", checked: i === 0, onchange: show });
      return input;
    });
    const choices = make("div", "choices");
    choices.setAttribute("role", "radiogroup");
    choices.setAttribute("aria-label", "Rule");
    choices.append(...inputs.map((input, i) => {
      const label = make("label");
      label.append(input, make("span", "", rules[i]));
      return label;
    }));
    const move = make("input");
    Object.assign(move, { type: "range", max: stops.length - 1, value: start, oninput: show });
    move.setAttribute("aria-label", "How far q is from p");
    const output = make("output");
    const slider = make("div", "slider");
    const track = make("div", "track-line");
    track.append(move);
    const ends = make("div", "ends");
    ends.append(make("span", "", "q is p"), make("span", "", "less like p"));
    slider.append(make("span", "label", "How far q is from p"), output, track, ends);
    const pair = make("div", "pair");
    for (const [name, head] of Object.entries(HEADS)) {
      shells[name] = setup.shells[name];
      const side = make("div");
      side.dataset.chart = name;
      side.append(make("h4", "", head), make("div", "plot"));
      pair.append(side);
    }
    const said = make("p", "said-of");
    said.setAttribute("role", "status");
    const controls = make("div", "controls");
    controls.append(choices, slider);
    box.append(controls, pair, said);

    function show() {
      const frame = frames[inputs.findIndex((input) => input.checked)][move.value];
      for (const name of Object.keys(HEADS)) charts[name] = { columns: frame[name], layout };
      said.textContent = frame.said;
      output.textContent = stops[move.value] + (Number(move.value) === start ? ", as in your run" : "");
      move.setAttribute("aria-valuetext", output.textContent);
      if (box.isConnected) draw();
    }
    show();
    return box;
  }

  function draw() {
    for (const [name, chart] of Object.entries(charts)) drawChart(element, shells, name, chart);
  }

  onLook(draw);
  const readValue = recordReader(read);
  watch("value", () => readValue(props.value));
  readValue(props.value);
}
