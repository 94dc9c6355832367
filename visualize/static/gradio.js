// Gradio's controls, mended.

import { make, whenReady } from "./dom.js";

/** Say what was refused beside the first field that its first sentence names, by its label, its setting's name or what it
    contains. */
export function besideField(problem) {
  for (const said of document.querySelectorAll("#settings .block > .problem")) said.remove();
  const [first] = problem.toLowerCase().split(/\.\s/);
  const placeIn = (block) => {
    const label = block.querySelector("[data-testid=block-info]")?.textContent.trim().toLowerCase();
    const text = block.querySelector("input:not([type]), input[type=text], textarea")?.value.trim().toLowerCase();
    if (!block.checkVisibility() || block.querySelector(".block")) return -1;
    return Math.max(...[label, text, block.id].map((it) => first.indexOf(it || " \n")));
  };
  const named = [...document.querySelectorAll("#settings .block")].map((block) => [placeIn(block), block]).filter(([place]) => place >= 0);
  named.sort(([one], [other]) => one - other)[0]?.[1].append(make("p", "problem", problem));
}

/** Fix what Gradio (6.31) leaves out of its controls, and what it leaves running. */
export function fixGradio() {
  const SURE = 60; // frames: longer than anything takes to move into its place
  let frames = 60 * SURE; // then give up: a run may be in progress
  let [last, step, alike] = [0, 0, 0];
  function stopClock() {
    const mine = requestAnimationFrame(stopClock);
    alike = mine - last === step ? alike + 1 : 0;
    [last, step] = [mine, mine - last];
    frames -= 1;
    if (frames && (alike < SURE || step > 2)) return;
    cancelAnimationFrame(mine);
    if (frames && step === 2) cancelAnimationFrame(mine - 1);
  }
  whenReady(stopClock);

  const BOILERPLATE = { "number input for ": "", "range slider for ": "Slider: " };

  /** For screen readers, a slider's parts have names that say what they look like; Gradio's radio groups have no name, and its accordions do not say whether they are open. To the
      browser each radio button is a group of its own: a Tab stop, with no way to the next by arrow keys. */
  function name() {
    for (const box of document.querySelectorAll("#settings textarea")) box.dir = "auto"; // as its text is written
    for (const title of document.querySelectorAll("#settings fieldset:not([aria-labelledby]) > [data-testid=block-info]")) {
      const group = title.parentElement;
      title.id = `${group.id}-name`;
      group.setAttribute("aria-labelledby", title.id);
    }
    for (const choice of document.querySelectorAll("#settings fieldset[id] input[type=radio]")) choice.name = choice.closest("fieldset").id;
    for (const input of document.querySelectorAll("#settings .slider_input_container input, #settings .tab-like-container :is(input, button)")) {
      const label = input.closest(".block").querySelector("[data-testid=block-info]")?.textContent.trim();
      const given = Object.keys(BOILERPLATE).find((words) => input.ariaLabel?.startsWith(words));
      const named = input.matches("button") ? `Reset ${label}` : given && `${BOILERPLATE[given]}${label}`;
      if (named && input.ariaLabel !== named) input.ariaLabel = named;
    }
    for (const fold of document.querySelectorAll("#settings button.label-wrap")) {
      fold.setAttribute("aria-expanded", fold.matches(".open"));
      fold.querySelector(".icon").ariaHidden = "true";
    }
  }
  whenReady(() => {
    for (const input of document.querySelectorAll("input[type=file]")) input.accept = ".json"; // another is refused by the page, not by Gradio
    const settings = document.querySelector("#settings"); // what is in an accordion comes when it is first opened
    if (!settings) return;
    name();
    new MutationObserver(name).observe(settings, { childList: true, subtree: true, attributeFilter: ["class", "aria-label"] });
  });

  // Gradio puts a number that is typed within its slider's bounds, and does not say so.
  document.addEventListener("blur", ({ target }) => {
    const block = target.matches?.("#settings .tab-like-container input") && target.closest(".block");
    if (!block) return;
    const { value, min, max, validity } = target;
    besideField("");
    if (validity.rangeUnderflow || validity.rangeOverflow) block.append(make("p", { className: "problem", role: "alert" }, `${value} is outside ${min} to ${max}.`));
  }, true);

  // Bring an accordion that was opened into view.
  document.addEventListener("click", ({ target }) => {
    const fold = target.closest("#settings button.label-wrap");
    if (fold) setTimeout(() => fold.classList.contains("open") && fold.parentElement.scrollIntoView({ block: "nearest" }), 50);
  });
}
