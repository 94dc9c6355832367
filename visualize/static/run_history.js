// The last ten runs of this page, with their numbers: a click shows one again.

import { button, closeOutside, make, tableRow, within } from "./dom.js";

const KEPT = 10;
const NUMBERS = { speed: "tok/s", pass: "tokens per pass", accepted: "acceptance" }; // readouts of a run

/** Keep the stage's own runs, and list them in its menu. ``beside(one, other)``: show two of them side by side. */
export function addRunHistory(stage, beside) {
  const $ = within(stage.element);
  const menu = $(".runs");
  const runs = [];
  closeOutside(menu);

  /** List the run that is shown, once it is over. */
  function note(picture) {
    const { id, own, head, readouts, frame } = picture;
    if (!own || !frame.finished || runs.some((run) => run.id === id)) return;
    const numbers = Object.keys(NUMBERS).map((key) => readouts[key]?.slice(0, 2).join(" ") ?? "–");
    runs.unshift({ picture, numbers, id });
    runs.length = Math.min(runs.length, KEPT);
    menu.hidden = false;
    const names = make("tr", "", ...["Run", ...Object.values(NUMBERS), ""].map((name) => make("th", { scope: "col" }, name)));
    $(".runs table").replaceChildren(names, ...runs.map(row));
  }

  function row({ picture, numbers }) {
    const { head, id, frames } = picture;
    const show = button({ title: head.described, onclick: () => again(id, frames) }, head.short);
    const race = button({ title: "Side by side with the run that is shown", onclick: () => ((menu.open = false), beside(picture, stage.picture)) }, "⇄");
    return tableRow(show, [...numbers, race]);
  }

  /** Show a run as one from a file is shown. */
  function again(id, frames) {
    menu.open = false;
    stage.leave();
    stage.read([{ run: id, again: performance.now() }, ...frames].map((record) => JSON.stringify(record)).join("\n"));
  }

  return note;
}
