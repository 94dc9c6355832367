// One thing changed, and the run made again with it.

import { progressAnnouncer } from "../../static/announce.js";
import { body, make, within } from "../../static/dom.js";
import { recordReader } from "../../static/sse.js";

export function mount(element, { props, trigger, watch }, setup) {
  const $ = within(element);
  const announce = progressAnnouncer(element);

  const readValue = recordReader((record) => {
    $(".try").hidden = !record;
    if (!record) return;
    const { title, why, rows, see, running = false, progress = "", share, problem } = record;
    body.classList.toggle("running", running);
    $(".title").textContent = `${title}.`;
    $(".why").textContent = why;
    announce(problem ?? progress, running);
    $(".progress").classList.toggle("problem", Boolean(problem));
    $(".bar").hidden = $(".halt").hidden = !running;
    $(".bar i").style.width = `${100 * (share ?? 0)}%`;
    $("table").hidden = !see;
    $("tbody").replaceChildren(...rows.map(([label, ...values]) => {
      const row = make("tr");
      const head = make("th", "", label);
      head.scope = "row";
      row.append(head, ...values.map((text) => make("td", "", text)));
      return row;
    }));
    $(".see").textContent = see;
  });

  function changed() {
    if (!props.value) $(".try").hidden = true;
    readValue(props.value);
  }

  $(".main").textContent = setup.does;
  $(".main").onclick = () => trigger("submit");
  $(".halt").onclick = () => document.querySelector("#stop").click();
  watch("value", changed);
  changed();
}
