// The capstone page: a case, and the grade of an attempt (visualize/pages/capstone/grading.py).

import { progressOf } from "../../static/announce.js";
import { copy, gently, make, within, write } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const progress = progressOf(element);
  let running = false;
  write($(".assumed"), setup.assumed);

  function read(record) {
    if (!record) return;
    if (record.case) return set(record.case);
    running = Boolean(record.running);
    progress(record);
    $(".go").ariaDisabled = running;
    $(".halt").ariaDisabled = !running;
    if (record.graded) show(record.graded);
  }

  /** Show the case. A grade that is on the page is of other settings. */
  function set({ title, about, given, targets }) {
    write($(".brief h1"), title);
    write($(".about"), about);
    write($(".given"), given);
    $(".targets").replaceChildren(...targets.map(([name, wanted]) => make("li", "", make("b", "", name), ` ${wanted}`)));
    if (!$(".graded").hidden) progress({ progress: "The settings have changed. The grade below is from before." });
    for (const part of [$(".graded"), $(".command")]) part.classList.toggle("before", true);
  }

  function show({ say, passed, marks, figures, command }) {
    for (const part of [$(".graded"), $(".command")]) Object.assign(part, { hidden: false }).classList.remove("before");
    progress({});
    write($(".conclusion"), say);
    $(".conclusion").className = `conclusion ${passed ? "passed" : "missed"}`;
    $(".marks").replaceChildren(...marks.map(mark));
    write($(".figures-of"), figures);
    write($(".serve"), command);
    $(".graded").scrollIntoView({ behavior: gently(), block: "nearest" });
  }

  function mark({ name, wanted, found, passed, limited }) {
    const sign = make("b", passed ? "passed" : "missed", passed ? "✓ met" : "✗ missed");
    const head = make("p", "", sign, make("b", "", name), ` ${found} `, make("small", "", `(${wanted})`));
    return make("li", "", head, ...(limited ? [make("p", "limited", limited)] : []));
  }

  $(".go").onclick = () => running || gradio.trigger("submit");
  $(".halt").onclick = () => running && gradio.trigger("stop");
  $(".copy").onclick = () => copy($(".copy"), $(".serve"));
  readRecords(gradio, read);
}
