// The sheet of the Memory page, from one JSON object (visualize/pages/memory/memory_report.py).

import { markStale } from "../../static/announce.js";
import { chartsOf } from "../../static/chart_panel.js";
import { fillReadout, make, readout, say, tableRow, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, { shells, assumed, quality }) {
  const $ = within(element);
  const { charts, show } = chartsOf(element, shells);

  function read(sheet) {
    if (!sheet) return;
    const instead = sheet.problem ?? sheet.status;
    const said = instead ? markStale(instead, Object.keys(charts).length) : sheet.notice || sheet.kept || sheet.about;
    say($(".sheet-say"), said, sheet.problem || sheet.notice);
    $(".sheet-say").classList.toggle("asking", Boolean(sheet.within));
    $(".sheet-say").style.setProperty("--within", `${sheet.within ?? 0}s`);
    $(".sheet").classList.toggle("stale", !sheet.charts);
    if (!sheet.charts) return;
    $(".readouts").replaceChildren(...sheet.readouts.map(figure));
    $(".formula tbody").replaceChildren(...sheet.formula.map(step));
    $(".source").textContent = sheet.source;
    show(sheet.charts);
  }

  function figure({ label, value, small, about }) {
    const card = readout({ key: label, label, about });
    const [number, unit] = value.split(" ");
    fillReadout(card, [number, unit, small]);
    return card;
  }

  function step({ name, ...cells }) {
    return tableRow(name, ["words", "numbers", "result"].map((cell) => make("td", cell, cells[cell])));
  }

  $(".assumed").textContent = assumed;
  const rows = quality.map(([name, ...cells]) => tableRow(name, cells.map((text) => make("td", "numbers", text))));
  $(".quality tbody").replaceChildren(...rows);
  readRecords(gradio, read);
}
