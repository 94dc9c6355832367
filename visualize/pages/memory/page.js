// The sheet of the Memory page, from one JSON object (visualize/pages/memory/memory_report.py).

import { markStale } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { fillReadout, make, readout, within } from "../../static/dom.js";

export function mount(element, { props, watch }, setup) {
  const $ = within(element);
  const { shells, assumed } = setup;
  let charts = {};

  function read(value) {
    if (!value) return;
    const sheet = JSON.parse(value);
    const instead = sheet.problem ?? sheet.status;
    $(".sheet-say").textContent = instead ? markStale(instead, Object.keys(charts).length) : sheet.notice || sheet.about;
    $(".sheet-say").classList.toggle("problem", Boolean(sheet.problem || sheet.notice));
    $(".sheet").classList.toggle("stale", !sheet.charts);
    if (!sheet.charts) return;
    $(".readouts").replaceChildren(...sheet.readouts.map(figure));
    $("tbody").replaceChildren(...sheet.formula.map(step));
    $(".source").textContent = sheet.source;
    charts = sheet.charts;
    draw();
  }

  function figure({ label, value, small, about }) {
    const card = readout({ key: label, label, about });
    const [number, unit] = value.split(" ");
    fillReadout(card, [number, unit, small]);
    return card;
  }

  function step({ name, words, numbers, result }) {
    const row = make("tr");
    const head = make("th", "", name);
    head.scope = "row";
    row.append(head, make("td", "words", words), make("td", "numbers", numbers), make("td", "result", result));
    return row;
  }

  function draw() {
    for (const [name, chart] of Object.entries(charts)) drawChart(element, shells, name, chart);
  }

  $(".assumed").textContent = assumed;
  onLook(draw);
  watch("value", () => read(props.value));
  read(props.value);
}
