// Progress and refusals in words, on the screen and for screen readers.

import { body, say, within, write } from "./dom.js";

/** ``text`` while the last request has no answer yet; ``shown``: whether an earlier answer is still on the page. */
export const markStale = (text, shown) => (shown ? `${text} What is shown is from before.` : text);

const APART = 2500; // milliseconds between steps of a progress that screen readers are told of

/** Tells screen readers of a progress in a status of their own, since the one on the screen changes too often for them:
    of a step now and then, and of the last at once. */
export function announcer(node) {
  let heard = -APART;
  let hearing;
  return (text, underWay) => {
    clearTimeout(hearing);
    hearing = setTimeout(() => {
      if (node.textContent !== text) heard = performance.now();
      write(node, text);
    }, underWay ? heard + APART - performance.now() : 0);
  };
}

/** Show a job's progress in words and as a bar, and tell screen readers of it without its count of tokens. */
export function progressOf(element) {
  const $ = within(element);
  const announce = announcer($(".heard"));
  return ({ running = false, progress = "", share, problem }) => {
    const text = problem ?? progress;
    body.classList.toggle("running", running);
    say($(".progress"), text, problem);
    announce(text.replace(/: [\d,]+%? (of .*)?tokens$/, ""), running);
    $(".bar").hidden = !running;
    $(".bar i").style.width = `${100 * (share ?? 0)}%`;
  };
}
