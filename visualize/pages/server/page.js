// The Server page: reports on the server (visualize/pages/server/watched.py) and on the visitor's own prompt
// (visualize/pages/server/remote_run.py), each from a channel of its own.

import { markStale } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { body, fillReadout, make, readout, within, write } from "../../static/dom.js";
import { UNREACHED, openChannel } from "../../static/sse.js";

export function mount(element, { props, server, watch }, setup) {
  const $ = within(element);
  const { shells, readouts } = setup;
  const columns = Object.fromEntries(Object.entries(shells).map(([name, { start }]) => [name, structuredClone(start)]));
  const layouts = Object.fromEntries(Object.keys(shells).map((name) => [name, {}]));
  const dirty = new Set(Object.keys(shells));

  $(".readouts").append(...readouts.map(readout));

  function say(selector, text, problem = false) {
    write($(selector), text);
    $(selector).classList.toggle("problem", problem);
  }

  /** Add new points to the lines, and drop those that are out of view for good. */
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

  function take(news) {
    const { points, layout, charts, readouts, say: text, problem } = JSON.parse(news);
    if (points) append(points, layout);
    for (const [name, axes] of Object.entries(layout ?? {})) change(name, columns[name], axes);
    for (const [name, chart] of Object.entries(charts ?? {})) change(name, chart.columns, chart.layout);
    for (const [key, row] of Object.entries(readouts ?? {})) fillReadout($(`[data-key=${key}]`), row);
    if (problem) return old(text);
    $(".readouts").classList.remove("old");
    say(".sheet-say", text);
  }

  function old(why) {
    $(".readouts").classList.add("old");
    say(".sheet-say", markStale(why, $(".readouts .value").textContent !== "–"), true);
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
      for (const name of dirty) drawChart(element, shells, name, { columns: columns[name], layout: layouts[name] });
      dirty.clear();
    });
  }

  // -- the visitor's own prompt ----------------------------------------------------------------------

  let answer;
  let began = false; // the first token has come
  function begin(id, prompt) {
    answer?.close();
    began = false;
    $(".answer-text").replaceChildren(make("span", "prompt", prompt));
    say(".answer-say", "Sent. Waiting for the first token …");
    say(".rounds-say", "Reported when the answer has ended.");
    change("rounds", structuredClone(shells.rounds.start), {});
    body.classList.add("running");
    const gone = () => {
      if (body.classList.contains("running")) say(".answer-say", "The lab no longer follows this answer. Send it again.", true);
      body.classList.remove("running");
    };
    const lost = () => body.classList.contains("running") && say(".answer-say", UNREACHED, true);
    const found = () => body.classList.contains("running") && say(".answer-say", "The lab answers again.");
    answer = openChannel(id, { hear: answered, gone, lost, found });
  }

  function answered(news) {
    const { text, say: words, problem, rounds, charts } = JSON.parse(news);
    const box = $(".answer-text");
    if (text) {
      const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
      if (!began) say(".answer-say", "Receiving the answer …");
      began = true;
      box.append(text); // as text
      if (follows) box.scrollTop = box.scrollHeight;
    }
    if (rounds) say(".rounds-say", rounds);
    if (charts) change("rounds", charts.rounds.columns, charts.rounds.layout);
    if (!words) return;
    say(".answer-say", words, problem);
    body.classList.remove("running"); // this was its last message
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
      const gone = () => old("The lab no longer follows this server: it was stopped or restarted. Reload this page.");
      openChannel(id, { hear: take, gone, lost: () => old(UNREACHED), rests: true });
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
}
