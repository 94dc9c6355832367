// The page's address, which says what its controls say: a link restores them, and the run.

import { body, modified, store, stored } from "./dom.js";

/** What the address says, or is about to: Safari lets a page rewrite its own a hundred times in ten seconds, and a
    slider that is dragged changes more often. To be read. */
export const query = new URLSearchParams(location.search);
/** What the address said as the page was opened. */
export const initialQuery = new URLSearchParams(location.search);

// While another page is visited, this tab keeps what each page was asked, and what it showed: a link in the header leads
// back to it.
const [LEFT, SHOWN, RETURNING] = ["left", "shown", "returning"].map((name) => `decode-lab-${name}`);
const HERE = location.pathname;
const left = JSON.parse(stored(LEFT, "sessionStorage") ?? "{}"); // by page
const came = performance.getEntriesByType("navigation")[0]?.type;
/** Whether a person came back to this page, by a link in the header or the browser's Back and Forward. */
export const returned = came === "back_forward" || stored(RETURNING, "sessionStorage") === HERE;
export const reloaded = came === "reload";
/** What the page showed when it was left at this address, for whoever returns; else null. */
export const keptShown = (() => {
  const [asked, shown] = JSON.parse(stored(SHOWN + HERE, "sessionStorage") ?? "[]");
  return returned && asked === query.toString() ? shown : null;
})();
store(RETURNING, null, "sessionStorage");

/** Keep, when the page is left, the text that ``shown`` returns of what it shows; null: nothing. */
export function keepShown(shown) {
  addEventListener("pagehide", () => {
    const text = shown();
    store(SHOWN + HERE, null, "sessionStorage");
    if (text) store(SHOWN + HERE, JSON.stringify([query.toString(), text]), "sessionStorage"); // unless it is too long
  });
}

/** Have the header's links lead back to where the other pages were left. */
export function leadBack() {
  addEventListener("pagehide", () => store(LEFT, JSON.stringify({ ...left, [HERE]: query.toString() }), "sessionStorage"));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("nav a:not([aria-current])");
    if (link && !modified(event)) store(RETURNING, link.pathname, "sessionStorage");
  });
}

const WRITE_MS = 200; // for a writing, on average
const OF_RUN = ["run", "step", "guess", "at"]; // what a link says of a run, and not of its settings
const BURST = 20; // writings at once: a preset changes many controls
let due = 0; // when all writings so far would be over, had each taken its time
let waiting; // timer for the next
let changed = false; // the settings, since Run was pressed

/** Change the address at once; null removes a name. */
export function updateAddress(changes) {
  change(changes);
  writeAddress();
}

function change(changes) {
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) query.delete(name);
    else query.set(name, value);
  }
  carrySettings();
}

function writeSoon() {
  clearTimeout(waiting);
  const ahead = due - performance.now() - BURST * WRITE_MS;
  if (ahead > 0) waiting = setTimeout(writeAddress, ahead);
  else writeAddress();
}

export function writeAddress() {
  clearTimeout(waiting);
  const text = query.toString();
  if (text === new URLSearchParams(location.search).toString()) return;
  due = Math.max(due, performance.now()) + WRITE_MS;
  try {
    history.replaceState(history.state, "", location.pathname + (text && `?${text}`)); // a path: Gradio sets a base
  } catch {
    return; // a saved page that another page shows may have no address of its own
  }
  document.dispatchEvent(new Event("decode-lab-address"));
}

/** Have a link ask what the other page was last asked, with the settings that both have as they are here. If that changes
    any, it asks for no run. */
export function carrySettings() {
  for (const link of document.querySelectorAll("nav a:not([aria-current])")) {
    const before = new URLSearchParams(left[link.pathname]);
    const asked = new URLSearchParams(before);
    const accepted = JSON.parse(link.dataset.carried ?? "{}"); // the values of each name; null: any
    for (const [name, values] of Object.entries(accepted)) {
      const value = query.get(name);
      if (value !== null && (values?.includes(value) ?? true)) asked.set(name, value);
      else asked.delete(name);
      if (asked.get(name) !== before.get(name)) for (const of of OF_RUN) asked.delete(of);
    }
    link.search = asked;
  }
}

/** Run was pressed: what changes from now on is not what it runs. */
export function watchChanges() {
  changed = false;
}

/** A run has begun: a link restores it, unless it would have other settings. */
export const recordRun = () => changed || updateAddress({ run: 1 });

/** Make a select's choice a part of the link, which leaves out its default. */
export function linkSelect(name, select) {
  const [usual, wanted] = [select.value, initialQuery.get(name)];
  if ([...select.options].some(({ value }) => value === wanted)) select.value = wanted;
  select.addEventListener("change", () => updateAddress({ [name]: select.value === usual ? null : select.value }));
}

const LONGEST = 4000; // characters of a value: a link with that many still gets through browsers and proxies
const KEPT = "kept"; // what the address says of a longer one, which this tab keeps through a reload
const key = (name) => `decode-lab-${name}`;

function short(name, value) {
  if (value.length <= LONGEST) return value;
  store(key(name), value, "sessionStorage");
  return KEPT;
}

const kept = (name, value) => (value === KEPT ? (stored(key(name), "sessionStorage") ?? "") : value);

/** Write the controls' values into the address, except defaults; an emptied number is one, except where it
    ``mayBeEmpty``. Names that are neither theirs nor match ``others`` are dropped. If they changed, it loses its run, step, token and instant, which belong to other settings. Nothing
    is written until the controls are set as the link says. */
function link(names, defaults, mayBeEmpty, others, values) {
  if (!body.dataset.ready) return;
  const plain = (value) => String(typeof value === "boolean" ? Number(value) : (value ?? "")); // of several: a,b
  const meant = (name, value) => value ?? (mayBeEmpty.includes(name) ? "" : defaults[name]);
  const said = names.map((name, i) => [name, short(name, plain(meant(name, values[i]))), plain(defaults[name])]);
  const same = said.every(([name, value, usual]) => value === (query.get(name) ?? usual));
  const known = new RegExp(`^(${[...names, others].join("|")})$`);
  change(Object.fromEntries([...query.keys()].filter((name) => !known.test(name)).map((name) => [name, null])));
  change(Object.fromEntries(said.map(([name, value, usual]) => [name, value === usual ? null : value])));
  if (!same) change(Object.fromEntries(OF_RUN.map((name) => [name, null])));
  writeSoon();
  if (same) return; // perhaps written differently
  changed ||= touched;
  document.dispatchEvent(new Event("decode-lab-other")); // nobody waits for them any more
}

// A link's settings may come to the controls after the run that it asks for: nobody has changed them.
let touched = false;
for (const how of ["pointerdown", "keydown", "input"]) document.addEventListener(how, () => (touched = true), true);

// For Gradio's controls (visualize/gradio_events.py).
window.decodeLab = { link, kept };
