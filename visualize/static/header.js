// What every page has: light or dark, keys, Run and Stop, and what words mean.

import { carrySettings, initialQuery, keptShown, leadBack, reloaded, returned, watchChanges, writeAddress } from "./address.js";
import { look } from "./chart_panel.js";
import { body, copy, make, modified, placeTip, store, stored, whenReady, within } from "./dom.js";
import { fixGradio } from "./gradio.js";
import { addHelp, addPresentation } from "./help.js";
import { Terms } from "./terms.js";

export function mount(element, gradio, { terms, links = {} }) {
  const $ = within(element);
  const glossary = new Terms(terms);
  const served = "gradio_config" in window; // and not a page on its own
  const LOOK = "decode-lab-look";
  const wear = (worn) => body.classList.toggle("dark", worn === "dark");

  if (stored(LOOK)) wear(stored(LOOK));

  $("#look").onclick = () => {
    wear(look() === "dark" ? "light" : "dark");
    store(LOOK, look());
  };

  // Keys run and stop what the page runs, from the beginning: what draws it comes later. They are listened for on the
  // window, after everything else that uses them.
  const keyed = (button, key) => document.querySelector(`${button}, [aria-keyshortcuts="${key}"]`);
  // Skip links: the first Tab stops. What has no focus of its own gets it.
  for (const skip of element.querySelectorAll(".skip")) {
    const there = () => document.querySelector(skip.dataset.to);
    skip.onclick = () => {
      if (!there().matches("button")) there().tabIndex = -1;
      there().focus();
    };
    const offer = () => (skip.hidden = !there());
    if (served) whenReady(offer);
    else offer();
    element.addEventListener("focusin", ({ target }) => target === skip || offer()); // a lesson's Run works later
  }

  let listOpen = false; // before the key closed it: Gradio's dropdown does so before the window hears the key
  // Gradio opens a list as soon as its field has the focus, and when Tab leaves it. By Tab it opens with the arrow keys, or
  // when it is clicked.
  let tabbed = false;
  const LIST = "input[role=combobox]";
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    const inList = target.matches?.(LIST);
    listOpen = inList && target.ariaExpanded === "true";
    if (key === "Tab" && inList) {
      event.stopImmediatePropagation();
      document.getElementById(target.getAttribute("aria-controls"))?.setAttribute("tabindex", -1); // one that scrolls is a Tab stop itself
      if (listOpen) target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }
    tabbed = key === "Tab";
  }, true);
  document.addEventListener("focus", (event) => tabbed && event.target.matches?.(LIST) && event.stopImmediatePropagation(), true);
  document.addEventListener("pointerdown", ({ target }) => {
    tabbed = false;
    if (target === document.activeElement && target.matches(LIST) && target.ariaExpanded === "false") target.dispatchEvent(new FocusEvent("focus"));
  }, true);
  window.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (event.repeat) return; // held down, it would begin a run after every run
      const field = document.activeElement;
      const typed = field.matches("input[type=number]"); // its number counts once the focus has left it
      if (typed) field.blur();
      setTimeout(() => (typed && field.focus(), keyed("#run", "Control+Enter")?.click()), typed ? 50 : 0);
    } else if (event.key === "Escape") {
      hideMeaning();
      if (event.isTrusted && body.matches(STOPPABLE) && !listOpen) stop()?.click();
    }
  });

  // Stop works while something runs, and already from the click on Run: until the page hears of its run, and then presses
  // Stop again if it was pressed, or hears that there is none (visualize/gradio_events.py), or that it was refused.
  // While it runs, nothing else begins. What cannot be pressed keeps its place among the Tab stops, so it is not disabled.
  const STOPPABLE = ".running, .begun";
  const STARTS = "#run, #open, #replays input, .teaching [data-does=measure]";
  const stop = () => keyed("#stop", "Escape");
  const startable = () => (body.dataset.ready || !served) && !body.matches(".running"); // the link's settings are there
  let early = false;
  document.addEventListener("click", (event) => {
    const { target } = event;
    if (target.closest(STARTS) && !startable()) {
      event.preventDefault();
      event.stopImmediatePropagation();
    } else if (target.closest("#run")) {
      early = false;
      if (!body.matches(".begun")) watchChanges(); // else the press before counts
      body.classList.add("begun");
    } else if (target.closest("#stop")) early = body.matches(".begun");
  }, true);
  new MutationObserver(() => {
    if (early && body.matches(".running")) stop().click();
    if (body.matches(".begun.running")) body.classList.remove("begun");
    early &&= body.matches(".begun");
    document.querySelector("#stop")?.setAttribute("aria-disabled", !body.matches(STOPPABLE));
    for (const button of document.querySelectorAll(STARTS)) button.ariaDisabled = !startable();
  }).observe(body, { attributeFilter: ["class", "data-ready"] });

  document.addEventListener("decode-lab-refused", () => body.classList.remove("begun"));

  // Gradio loads a page again that has lost its server (answers.js): what ran is then not begun anew, unasked.
  const LOST = "decode-lab-lost";
  const lost = stored(LOST, "sessionStorage") && reloaded;
  store(LOST, null, "sessionStorage");

  /** Say what is to be known now in the place of what the page is. Returns how to take that back. */
  function told(text) {
    const about = $(".lab-header p");
    const before = { textContent: about.textContent, className: "", role: null };
    Object.assign(about, { textContent: text, className: "told", role: "status" });
    return () => Object.assign(about, before);
  }
  if (lost) told("The connection was lost, and this page was loaded again. Whatever ran has ended.");

  const WAITS = 20_000; // milliseconds
  if (served) {
    let takeBack = () => {};
    const waits = setTimeout(() => (takeBack = told("The server has not answered yet. If it stays so, load this page again.")), WAITS);
    whenReady(() => (clearTimeout(waits), takeBack()));
  }

  // A link may ask for the run itself, but not with models that it names: whoever made it does not choose what is loaded.
  // Who comes back sees what was there, if it was kept, and begins nothing.
  const runs = initialQuery.get("run") === "1" && initialQuery.get("pair") !== "other" && !lost;
  if (runs && returned && keptShown === null) {
    const takeBack = told("You came back to this page. Its run has not been started again.");
    document.addEventListener("click", ({ target }) => target.closest("#run") && takeBack(), true);
  } else if (runs && !returned) whenReady(() => document.querySelector("#run")?.click());

  // Where there is no room for the pages' names side by side, this one's is scrolled into view. (By scrollIntoView, Tab would
  // begin there.)
  const here = $("[aria-current]");
  const names = here?.parentElement;
  names?.scrollTo(here.offsetLeft - names.offsetLeft + (here.offsetWidth - names.clientWidth) / 2, 0);

  // The pages' names are one Tab stop, from which arrow keys lead on.
  const pages = [...element.querySelectorAll("nav a")];
  const stopAt = (link) => pages.forEach((page) => (page.tabIndex = page === link ? 0 : -1));
  stopAt(here ?? pages[0]);
  for (const [at, page] of pages.entries()) {
    page.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: pages[at - 1], ArrowRight: pages[at + 1], Home: pages[0], End: pages.at(-1) }[event.key];
      if (!to || modified(event)) return;
      event.preventDefault();
      to.focus();
    });
    page.addEventListener("focus", () => stopAt(page));
  }

  // A page of the course has a first heading of its own.
  if (here?.textContent === "Lessons") $("h1").role = "none";

  // What a word on the page means, by the glossary and what is particular here (data-about), is shown to whoever points at
  // it, taps it or comes to it by Tab; and so is the whole of a text that is cut off.
  const meaning = make("div", { id: "meaning", className: "meaning", role: "tooltip", hidden: true });
  body.append(meaning);
  let meant = null; // the word whose meaning is shown
  let meantAt; // its place: the browser tells late of a scroll that brought a word into view
  function isCut(node) {
    if (!node || node.title || getComputedStyle(node).textOverflow !== "ellipsis") return false;
    return node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight;
  }
  let soon; // timer: a setting's is shown to a pointer at rest
  function hideMeaning() {
    clearTimeout(soon);
    meaning.hidden = true;
    meant?.removeAttribute("aria-describedby");
    meant = null;
  }
  function tellMeaning({ target, type, pointerType }) {
    const cut = [target, target.parentElement].find(isCut);
    const word = target.closest("[data-about]") ?? glossary.word(target) ?? cut;
    if (word && word === meant) return;
    hideMeaning();
    if (!word) return;
    if (word === cut || !word.closest("#settings")) tell(word);
    else if (type === "pointerover" && pointerType !== "touch") soon = setTimeout(tell, 700, word);
  }
  function tell(word) {
    meant = word;
    word.setAttribute("aria-describedby", meaning.id);
    const { about, more } = word.dataset;
    meaning.textContent = [glossary.about(word), about, more].filter(Boolean).join(" ") || word.textContent;
    meaning.hidden = false;
    meantAt = word.getBoundingClientRect().top;
    placeTip(meaning, word);
  }
  for (const how of ["pointerover", "focusin", "click"]) document.addEventListener(how, tellMeaning);
  document.addEventListener("focusout", hideMeaning, true);
  document.addEventListener("scroll", () => meant && meant.getBoundingClientRect().top !== meantAt && hideMeaning(), true); // it moves away

  if (served) leadBack();
  carrySettings();

  if (served) {
    const about = $(".lab-header p").textContent;
    glossary.linkLessons();
    whenReady(() => {
      $("#help").hidden = false;
      addHelp($("#help"), about, links, glossary);
      $("#present").hidden = !document.querySelector(".staged");
      addPresentation($("#present"));
    });
    document.addEventListener("keydown", (event) => {
      const { key, target, ctrlKey, metaKey, altKey } = event;
      const types = key === "?" ? "input:not([type=checkbox], [type=radio], [type=range], [type=number])" : "input";
      if (ctrlKey || metaKey || altKey || target.closest?.(`${types}, textarea, select, [contenteditable], dialog`)) return;
      const pressed = { "?": "#help", p: "#present" }[key];
      if (pressed && !$(pressed).hidden) event.preventDefault(), $(pressed).click();
    });
  }

  // Within another page, as on a Space, nobody sees the address.
  if (location.protocol.startsWith("http")) {
    const shown = make("span", "address");
    $("#link").after(shown);
    $("#link").hidden = false;
    $("#link").onclick = () => {
      writeAddress();
      const url = new URL(location);
      for (const name of [...url.searchParams.keys()]) if (name.startsWith("__")) url.searchParams.delete(name); // a Space's key
      shown.textContent = url;
      copy($("#link"), shown);
    };
  }
  if (served) fixGradio();
}
