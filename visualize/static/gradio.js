// What Gradio (6.31) leaves out of its controls, and what it leaves running. Put after header.js, in the lab's pages only.

// Its loading screen goes away and leaves the screen's clock running (StatusTracker): that asks for sixty pictures a second
// as long as the page is open. Browsers number what is asked for. Where for a second nobody asks but this and one other,
// that is the clock, and its number is the one before this one's.
const SURE = 60; // frames: longer than what moves into its place
let frames = 60 * SURE; // a run may be under way
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

/** Its groups of choices have no name, and its folds do not say whether they are open, to those who listen. Each choice is
    a group of its own to the browser: a stop of Tab, with no way to the next by arrows. */
function name() {
  for (const title of document.querySelectorAll("#settings fieldset:not([aria-labelledby]) > [data-testid=block-info]")) {
    const group = title.parentElement;
    title.id = `${group.id}-name`;
    group.setAttribute("aria-labelledby", title.id);
  }
  for (const choice of document.querySelectorAll("#settings fieldset[id] input[type=radio]")) choice.name = choice.closest("fieldset").id;
  for (const fold of document.querySelectorAll("#settings button.label-wrap")) {
    fold.setAttribute("aria-expanded", fold.matches(".open"));
    fold.querySelector(".icon").ariaHidden = "true";
  }
}
whenReady(() => {
  const settings = document.querySelector("#settings"); // what is in a fold comes when it is opened first
  if (!settings) return;
  name();
  new MutationObserver(name).observe(settings, { childList: true, subtree: true, attributeFilter: ["class"] });
});

// A fold that was opened is in view.
document.addEventListener("click", ({ target }) => {
  const fold = target.closest("#settings button.label-wrap");
  if (fold) setTimeout(() => fold.classList.contains("open") && fold.parentElement.scrollIntoView({ block: "nearest" }), 50);
});
