// The last ten runs of this page, with their numbers: a click shows one again.

import { button, closeOutside, make, tableRow, within } from "./dom.js";

const KEPT = 10;
const NUMBERS = { speed: "tok/s", pass: "tokens per pass", accepted: "acceptance" }; // readouts of a run

/** Keep the stage's own runs, and list them in its menu. */
export function addRunHistory(stage) {
  const $ = within(stage.element);
  const menu = $(".runs");
  const runs = [];
  closeOutside(menu);

  /** List the run that is shown, once it is over. */
  function note({ id, own, frames, head, readouts, frame }) {
    if (!own || !frame.finished || runs.some((run) => run.id === id)) return;
    const numbers = Object.keys(NUMBERS).map((key) => readouts[key]?.slice(0, 2).join(" ") ?? "–");
    runs.unshift({ id, frames, title: head.described, short: head.short, numbers });
    runs.length = Math.min(runs.length, KEPT);
    menu.hidden = false;
    const names = make("tr", "", ...["Run", ...Object.values(NUMBERS)].map((name) => make("th", { scope: "col" }, name)));
    $(".runs table").replaceChildren(names, ...runs.map(row));
  }

  function row({ id, frames, title, short, numbers }) {
    const show = button({ title, onclick: () => again(id, frames) }, short);
    return tableRow(show, numbers);
  }

  /** Show a run as one from a file is shown. */
  function again(id, frames) {
    menu.open = false;
    stage.leave();
    stage.read([{ run: id, again: performance.now() }, ...frames].map((record) => JSON.stringify(record)).join("\n"));
  }

  return note;
}
