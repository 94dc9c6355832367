// The Deploy page's answer (visualize/pages/deploy/deploy_report.py).

import { markStale } from "../../static/announce.js";
import { copy, make, say, tableRow, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio) {
  const $ = within(element);

  function read(sheet) {
    if (!sheet) return;
    say($(".sheet-say"), sheet.command ? sheet.say : markStale(sheet.say, $(".serve").textContent), sheet.problem);
    $(".sheet").classList.toggle("stale", !sheet.command);
    if (!sheet.command) return;
    $(".serve").textContent = sheet.command;
    $("tbody").replaceChildren(...sheet.splits.map(row));
    $(".splits").hidden = !sheet.splits.length;
    const said = sheet.differences.length ? sheet.differences : ["Nothing: every setting has its flag."];
    $("ul").replaceChildren(...said.map((text) => make("li", "", text)));
  }

  function row({ gpus, weights, token, left, sequences, holds, chosen }) {
    const verdict = make("td", holds ? "holds" : "fails", holds ? "✓ enough" : "✗ too few");
    return tableRow(gpus, [weights, token, left, sequences, verdict], chosen ? "chosen" : "");
  }

  for (const button of element.querySelectorAll(".copy")) {
    button.onclick = () => copy(button, button.closest(".panel").querySelector("code"));
  }
  readRecords(gradio, read);
}
