// The glossary (docs/glossary.md): what a word of the page means, and the lesson that teaches it.

import { make } from "./dom.js";

const WORDS = "th, h2, h3, .legend li, [data-testid=block-info], .toggle label span";

export class Terms {
  #terms;

  /** ``terms``: the definition and the lesson by name (visualize/glossary.py). */
  constructor(terms = {}) {
    this.#terms = terms;
  }

  /** The entry of what an element is labelled. */
  #of(element) {
    const label = element.querySelector(".label, .piece, [data-testid=block-info], .toggle label span") ?? element;
    return this.#terms[label.textContent.trim().toLowerCase().replace(/ p\d\d.*/, "")];
  }

  about(word) {
    return this.#of(word)?.[0];
  }

  /** The word that a node is in, if the glossary has it. */
  word(node) {
    const word = node.closest(WORDS);
    return word && this.#of(word) ? word : undefined;
  }

  /** The setting that has the focus, or contains ``node``: its name, what it means, and the link to its lesson. */
  setting(node = document.activeElement) {
    const block = node?.closest?.("#settings .block");
    const entry = block && !block.querySelector(".block") && this.#of(block);
    if (!entry) return null;
    const name = block.querySelector("[data-testid=block-info], .toggle label span").textContent.trim();
    const link = make("a", { className: "to-lesson", href: `lessons?lesson=${entry[1]}`, ariaLabel: `${name}: lesson ${entry[1]}` }, `Lesson ${entry[1]}`);
    return { block, name, about: entry[0], link };
  }

  /** A switch or a choice links to its lesson, for whoever points at it. It is no Tab stop on the way to Run: with the focus on the
      setting, ? opens the help with this link. */
  linkLessons() {
    document.addEventListener("pointerover", ({ target }) => {
      const { block, link } = (!target.closest(".to-lesson") && this.setting(target)) || {};
      if (block?.matches(".toggle, .choice") && !block.querySelector(".to-lesson")) block.append(Object.assign(link, { tabIndex: -1 }));
    });
  }
}
