// The lessons on the instructor's page: which are measured, and the progress (visualize/pages/lessons/answer_key.py).

import { progressAnnouncer } from "../../static/announce.js";
import { body, make, narrow, relist, within } from "../../static/dom.js";
import { recordReader } from "../../static/sse.js";

export function mount(element, { props, trigger, watch }) {
  const $ = within(element);
  const announce = progressAnnouncer(element);
  let numbers = [];

  function read({ lessons, running: runs, more = false, now, progress = "", share = 0, place = 0, of = 1 }) {
    const running = runs || more; // another lesson follows
    numbers = lessons.map(({ number }) => number);
    body.classList.toggle("running", running);
    const guide = make("li");
    const top = make("a", "", "Teaching this course");
    top.href = "#guide";
    guide.append(top);
    relist($("ol"), [guide, ...lessons.map((lesson) => entry(lesson, running, now))]);
    $('[data-does="stop"]').ariaDisabled = !running; // not disabled, so that it keeps the focus
    announce(progress, running);
    $(".bar").hidden = !running;
    $(".bar i").style.width = `${(100 * (place + share)) / of}%`;
  }

  function entry({ number, title, measured }, running, now) {
    const item = make("li", number === now ? "now" : "");
    const link = make("a");
    link.href = `#lesson-${number}`;
    const sign = make("span", `sign${measured ? " whole" : ""}`, String(number));
    link.title = measured ? `Measured ${measured}` : "Not measured yet";
    link.append(sign, make("b", "", title));
    const again = make("button", "measure", "↻");
    again.type = "button";
    again.ariaDisabled = running;
    again.title = `Measure the answers of lesson ${number}`;
    again.setAttribute("aria-label", again.title);
    again.onclick = () => running || trigger("submit", { lessons: [number] });
    item.append(link, again);
    return item;
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

  const fold = () => ($("details").open = !narrow.matches);
  narrow.addEventListener("change", fold);
  fold();
  const readValue = recordReader(read);
  watch("value", () => readValue(props.value));
  readValue(props.value);
}
