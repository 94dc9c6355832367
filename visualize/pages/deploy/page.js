// The Deploy page's answer (visualize/pages/deploy/deploy_report.py).

import { markStale } from "../../static/announce.js";
import { copy, make, within } from "../../static/dom.js";

export function mount(element, { props, watch }) {
  const $ = within(element);
  function read(value) {
    if (!value) return;
    const sheet = JSON.parse(value);
    $(".sheet-say").textContent = sheet.command ? sheet.say : markStale(sheet.say, $(".serve").textContent);
    $(".sheet-say").classList.toggle("problem", Boolean(sheet.problem));
    $(".sheet").classList.toggle("stale", !sheet.command);
    if (!sheet.command) return;
    $(".serve").textContent = sheet.command;
    $("tbody").replaceChildren(...sheet.splits.map(row));
    $(".splits").hidden = !sheet.splits.length;
    const said = sheet.differences.length ? sheet.differences : ["Nothing: every setting has its flag."];
    $("ul").replaceChildren(...said.map((text) => make("li", "", text)));
  }

  function row({ gpus, weights, token, left, sequences, holds, chosen }) {
    const line = make("tr", chosen ? "chosen" : "");
    const head = make("th", "", gpus);
    head.scope = "row";
    const verdict = make("td", holds ? "holds" : "fails", holds ? "✓ enough" : "✗ too few");
    line.append(head, ...[weights, token, left, sequences].map((text) => make("td", "", text)), verdict);
    return line;
  }

  for (const button of element.querySelectorAll(".copy")) {
    button.onclick = () => copy(button, button.closest(".panel").querySelector("code"));
  }

  watch("value", () => read(props.value));
  read(props.value);
}
