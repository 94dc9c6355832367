// Elements, keys, and what the browser stores: what every page's script builds with.

/** Find the first match of a selector within an element. */
export const within = (element) => (selector) => element.querySelector(selector);
export const body = document.body;
export const narrow = window.matchMedia("(max-width: 820px)");
export const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
export const gently = () => (calm.matches ? "auto" : "smooth"); // how the page scrolls by itself

/** Make an element: its class or its properties, and its texts and elements. */
export function make(tag, properties = "", ...content) {
  const node = document.createElement(tag);
  const { dataset, ...own } = typeof properties === "string" ? { className: properties } : properties;
  Object.assign(node, own);
  Object.assign(node.dataset, dataset);
  node.append(...content);
  return node;
}

export const button = (properties, ...content) => make("button", { type: "button", ...properties }, ...content);

/** Make a table's row: its name, and its cells as texts or elements. */
export function tableRow(name, cells, className = "") {
  const made = cells.map((cell) => (cell instanceof Node ? cell : make("td", "", cell)));
  return make("tr", className, make("th", { scope: "row" }, name), ...made);
}

/** An entry of a chart's key. */
export const part = (name, colour, kind = "") => make("span", { className: `part ${kind}`, style: `--part: ${colour}` }, name);

/** Set a text only if it differs: the browser would lay it out again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Say how something goes on, or what the problem is. */
export function say(node, text, problem = false) {
  write(node, text);
  node.classList.toggle("problem", Boolean(problem));
}

const TONES = 8; // of pool.css: sequences with the same tone still differ by number
export const tone = (number) => `tone-${number % TONES}`;

/** A figure with its name. Its meaning (``about``) is shown to whoever points at it (header.js). */
export function readout({ key, label, about }) {
  const number = make("div", "number", make("span", "value", "–"), make("span", "unit"));
  const card = { className: "readout", tabIndex: 0, role: "group", ariaLabel: label, dataset: { key, about } };
  return make("div", card, make("div", "label", label), number, make("div", "was"));
}

export function fillReadout(card, [value, unit = "", was = "", more = "", change = ""]) {
  card.dataset.more = more;
  card.querySelector(".was").className = `was ${change}`;
  write(card.querySelector(".value"), value);
  write(card.querySelector(".unit"), unit);
  write(card.querySelector(".was"), was);
}

/** Put a tip below what it is about or, where there is no room, above it. ``centred`` over it, or from its left on; not
    left of ``first``. */
export function placeTip(tip, about, { centred = false, first = 8, gap = 6 } = {}) {
  const [at, box] = [about.getBoundingClientRect(), tip.getBoundingClientRect()];
  const left = centred ? at.left + (at.width - box.width) / 2 : at.left;
  const below = at.bottom + gap + box.height < innerHeight;
  tip.style.left = `${Math.max(first, Math.min(left, innerWidth - box.width - 8))}px`;
  tip.style.top = `${below ? at.bottom + gap : at.top - box.height - gap}px`;
}

/** Whether a key is pressed with a modifier: then it is the browser's, or the system's. */
export const modified = ({ ctrlKey, metaKey, altKey, shiftKey }) => ctrlKey || metaKey || altKey || shiftKey;

/** The keys that a field uses itself, by its type. Those of other types use all. */
const OWN_KEYS = { checkbox: [" "], radio: [" ", "arrowleft", "arrowright"], range: ["arrowleft", "arrowright", "home", "end"] };

/** Whether a key (in lower case) is for what has the focus, which uses it itself: then it is not meant for the page. */
function isForTarget({ target, defaultPrevented }, key) {
  if (defaultPrevented || target.closest("[contenteditable]")) return true;
  if (target.matches("button, summary")) return key === " ";
  return target.matches("input, textarea, select") && (OWN_KEYS[target.type]?.includes(key) ?? true);
}

/** Do what ``keys``, by key in lower case ("shift+home" with Shift), ask for while ``part`` is shown and ``button`` works, unless what has the focus
    uses the key itself. ``own``: what has no keys of its own. Each is told whether its key is held down. */
export function onKeys(part, button, keys, own = null) {
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    const plain = event.key?.toLowerCase(); // autofill sends events without a key
    const key = event.shiftKey ? `shift+${plain}` : plain;
    if (!keys[key] || !part.offsetParent || button.disabled || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target !== own && isForTarget(event, plain)) return;
    if (key !== "l" && target.closest(".rule, [role=region]")) return; // it scrolls
    event.preventDefault();
    keys[key](event.repeat);
  });
  // After a button was pressed with a pointer, the next key is meant for the run and not for the button.
  document.addEventListener("click", ({ target, detail }) => detail && target.closest("#run, .transport button")?.blur());
}

/** To screen readers a chart is an image, labelled by the texts beside it, whatever they currently say. */
export function labelAsImage(plot) {
  const words = [...plot.closest("[data-chart], figure").querySelectorAll("h2, h3, h4, .caption")];
  for (const node of words) {
    if (node.id) continue;
    body.dataset.named = Number(body.dataset.named ?? 0) + 1; // counted over all scripts, so that ids are unique
    node.id = `beside-${body.dataset.named}`;
  }
  plot.setAttribute("role", "img");
  if (words.length) plot.setAttribute("aria-labelledby", words.map(({ id }) => id).join(" "));
}

/** As in lab/util/messages.py: ``counted(2, "block")`` is "2 blocks". */
export const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

/** Replace a list's items. The focus moves from a link or a button to the one that takes its place. */
export function relist(list, items) {
  const stops = () => [...list.querySelectorAll("a, button")];
  const place = stops().indexOf(document.activeElement);
  list.replaceChildren(...items);
  stops()[place]?.focus();
}

/** Copy a node's text. The button says so; or, where that is not allowed, as over plain http to another machine, which
    keys copy it: the text is then selected. */
export async function copy(button, node) {
  button.dataset.name ??= button.textContent; // at a second click it says something else
  try {
    await navigator.clipboard.writeText(node.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(node);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => (button.textContent = button.dataset.name), 2000);
}

/** Get the text that this browser stores under a name; null: none, or it lets pages store nothing. */
export function stored(name, area = "localStorage") {
  try {
    return window[area].getItem(name);
  } catch {
    return null;
  }
}

/** Store a text, or with null delete it. Returns whether the browser did. */
export function store(name, text, area = "localStorage") {
  try {
    if (text === null) window[area].removeItem(name);
    else window[area].setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

/** Have a text or a blob downloaded as a file. */
export function download(name, type, content) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Keep a list open, but not where the page is narrow. */
export function foldWhenNarrow(details) {
  const fold = () => (details.open = !narrow.matches);
  narrow.addEventListener("change", fold);
  fold();
}

/** Call ``act`` once the controls are set as the link says. */
export function whenReady(act) {
  if (body.dataset.ready) act();
  else new MutationObserver((_, observer) => (observer.disconnect(), act())).observe(body, { attributeFilter: ["data-ready"] });
}

/** Close a menu when something else is clicked or comes to the focus, and with Escape. */
export function closeOutside(menu) {
  const shut = () => (menu.open = false);
  document.addEventListener("click", ({ target }) => menu.contains(target) || shut());
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Tab") setTimeout(() => menu.contains(document.activeElement) || shut()); // the focus moves later
    if (event.key !== "Escape" || !menu.open) return;
    event.stopPropagation(); // the key is meant for the menu, not for the run
    shut();
    menu.querySelector("summary").focus();
  });
}
