// The lessons on the instructor's page: which are measured, and the progress (visualize/pages/lessons/answer_key.py).

import { progressOf } from "../../static/announce.js";
import { body, button, foldWhenNarrow, make, relist, whenReady, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio) {
  const $ = within(element);
  const { trigger } = gradio;
  const tell = progressOf(element);
  let numbers = [];

  function read(record) {
    if (!record) return;
    const { lessons, now, share = 0, place = 0, of = 1 } = record;
    const running = record.running || Boolean(record.more); // another lesson follows
    numbers = lessons.map(({ number }) => number);
    const guide = make("li", "", make("a", { href: "#guide" }, "Teaching this course"));
    relist($("ol"), [guide, ...lessons.map((lesson) => entry(lesson, running, now))]);
    $('[data-does="stop"]').ariaDisabled = !running; // not disabled, so that it keeps the focus
    tell({ ...record, running, share: (place + share) / of });
  }

  function entry({ number, title, measured }, running, now) {
    const about = { href: `#lesson-${number}`, title: measured ? `Measured ${measured}` : "Not measured yet" };
    const sign = make("span", `sign${measured ? " whole" : ""}`, number);
    const named = `Measure the answers of lesson ${number}`;
    const again = button({ className: "measure", ariaDisabled: running, title: named, ariaLabel: named }, "↻");
    again.onclick = () => running || trigger("submit", { lessons: [number] });
    return make("li", number === now ? "now" : "", make("a", about, sign, make("b", "", title)), again);
  }

  element.addEventListener("click", (event) => {
    const place = event.target.closest("a[href^='#']")?.getAttribute("href"); // relative to Gradio's base address, it would lead to another page
    if (!place) return;
    event.preventDefault();
    const part = document.querySelector(place);
    part.scrollIntoView();
    part.tabIndex = -1;
    part.focus({ preventScroll: true }); // as a browser does: the next Tab leads on from there
  });
  $('[data-does="measure"]').onclick = () => trigger("submit", { lessons: numbers }); // when it may be: header.js
  $('[data-does="stop"]').onclick = () => body.matches(".running") && trigger("stop");
  $('[data-does="print"]').onclick = () => window.print();
  // A table that scrolls sideways, as on a phone, has to be reached by keys.
  whenReady(() => document.querySelectorAll("#guide table").forEach((table) => table.scrollWidth > table.clientWidth && (table.tabIndex = 0)));
  foldWhenNarrow($("details"));
  readRecords(gradio, read);
}
