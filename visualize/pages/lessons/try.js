// One thing changed, and the run made again with it.

import { progressOf } from "../../static/announce.js";
import { tableRow, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const tell = progressOf(element);

  $(".main").textContent = setup.does;
  $(".main").onclick = () => gradio.trigger("submit");
  $(".halt").onclick = () => document.querySelector("#stop").click();
  readRecords(gradio, (record) => {
    $(".try").hidden = !record;
    if (!record) return;
    $(".title").textContent = `${record.title}.`;
    $(".why").textContent = record.why;
    tell(record);
    $(".halt").hidden = !record.running;
    $("table").hidden = !record.see;
    $("tbody").replaceChildren(...record.rows.map(([label, ...values]) => tableRow(label, values)));
    $(".see").textContent = record.see;
  });
}
