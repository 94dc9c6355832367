// Help: what the keys do, a tour of the page, and the switch to what a projector shows.

import { button, make, narrow, store, stored, tableRow } from "./dom.js";

const KEYS = [
  ["Ctrl Enter", "Run"],
  ["Esc", "Stop; close"],
  ["Space", "Play or pause"],
  ["← →", "A phase back or on"],
  ["Shift ← →", "A round back or on"],
  ["Home End", "First or last instant"],
  ["L", "Loop this round"],
  ["R", "Real time, and back"],
  ["P", "Presentation: large, for a projector"],
  ["?", "This help, or that of a setting"],
];
/** The stops of the tour: where, and what is said there. Those that a page does not have are left out. */
const TOUR = [
  ["#models", "These are the models: what they learned from decides what they can continue."],
  ["#speculative", "Who proposes draft tokens. Off, every token takes a forward pass of the target."],
  ["#run", "Run computes at full speed, and plays what happened slowly enough to watch."],
  [".film", "A round: draft tokens with q, one pass of the target with p, a verdict each, and the cache's slots below."],
  [".stage:not(.opens) .readouts, .opens .opening", "A run's numbers appear here. After a second run, each shows its change."],
];

/** ``opener``: the button that opens the help. ``about``: what the page is. ``links``: addresses by name. ``glossary``: has
    what the setting with the focus means. */
export function addHelp(opener, about, links, glossary) {
  const dialog = make("dialog", { className: "help", ariaLabel: "Help" });
  const close = button({ onclick: () => dialog.close() }, "Close");
  const keys = make("table", "", ...KEYS.map(([key, what]) => tableRow(key, [what])));
  const stops = TOUR.filter(([place]) => document.querySelector(place));
  const tour = button({ className: "tour", onclick: () => (dialog.close(), visit(0)) }, "Take the tour");
  tour.hidden = !stops.length;
  const said = make("p", "about", "The README says what each setting does, how everything was measured, and how to run a server. The source is here to read (Apache-2.0).");
  said.append(...Object.entries(links).flatMap(([name, href], i) => [i ? " · " : " ", make("a", { href }, name)]));
  const setting = make("p", { className: "setting", hidden: true });
  const computes = make("p");
  dialog.append(setting, make("h2", "", "Decode Lab"), make("p", "", about), computes, keys, make("h2", "", "About"), said, make("div", "", tour, close));
  document.body.append(dialog);
  opener.onclick = () => {
    const { name, about, link } = glossary.setting() ?? {};
    setting.hidden = !name;
    if (name) setting.replaceChildren(make("b", "", name), ` ${about} `, link);
    const device = document.querySelector("#device").textContent;
    computes.textContent = device && `Shown: ${device}.`;
    dialog.showModal();
  };

  /** Go to a stop of the tour: it is outlined, and a note beside it says what it is. */
  function visit(at) {
    document.querySelector(".toured")?.classList.remove("toured");
    document.querySelector(".tour-note")?.remove();
    const [place, text] = stops[at] ?? [];
    const there = place && document.querySelector(place);
    if (narrow.matches) document.body.classList.toggle("setting", Boolean(there?.closest("#settings"))); // else they are hidden
    if (!there) return opener.focus();
    there.classList.add("toured");
    there.scrollIntoView({ block: "nearest" });
    const next = button({ onclick: () => visit(at + 1) }, at + 1 < stops.length ? "Next" : "Done");
    const end = button({ onclick: () => visit(stops.length) }, "End");
    const note = make("div", { className: "tour-note", role: "dialog", ariaLabel: `Tour, stop ${at + 1} of ${stops.length}` }, make("p", "", text), make("div", "", `${at + 1} of ${stops.length}`, end, next));
    note.addEventListener("keydown", (event) => event.key === "Escape" && (event.stopPropagation(), visit(stops.length)));
    document.body.append(note);
    const box = there.getBoundingClientRect();
    const below = box.bottom + note.offsetHeight + 12 < innerHeight;
    note.style.top = `${Math.max(8, below ? box.bottom + 8 : Math.min(box.top - note.offsetHeight - 8, innerHeight - note.offsetHeight - 8))}px`;
    note.style.left = `${Math.max(8, Math.min(box.left, innerWidth - note.offsetWidth - 8))}px`;
    next.focus();
  }
}

const PRESENTING = "decode-lab-presenting";
/** Switch between the page as it is and what a projector shows: large, with the settings away. */
export function addPresentation(switcher) {
  const show = (on) => {
    document.body.classList.toggle("presenting", on);
    switcher.setAttribute("aria-pressed", on);
    store(PRESENTING, on ? "1" : null, "sessionStorage");
    dispatchEvent(new Event("resize")); // charts fit their new places
  };
  switcher.onclick = () => show(!document.body.classList.contains("presenting"));
  if (stored(PRESENTING, "sessionStorage")) show(true);
}
