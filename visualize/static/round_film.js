// One round, phase by phase: the draft tokens, the target's one pass over them, the verdicts, the target's own token, and
// the cache's slots meanwhile. All of it is in the frames (visualize/reduce/frames.py): ``round`` and ``table``.

import { make, within, write } from "./dom.js";
import { phasesOf, reached, stagesOf } from "./round_phases.js";
import { quoted, tallyOf } from "./round_words.js";
import { number, promptToken } from "./token_text.js";

const CONTEXT = 80; // characters of the text that are shown before the round
const [SLOT, AROUND, NAME] = [15, 14, 72]; // pixels of the lane: a slot, what is around a block's, and the lane's name less a gap

/** ``root``: film.html. ``states``: glyph and word of each state (visualize/states.py). ``pointed(position)``: the token of
    a slot is pointed at, or none (null). */
export class RoundFilm {
  constructor(root, states, pointed) {
    this.root = root;
    this.states = states;
    this.$ = within(root);
    this.lane = this.$(".kv-lane");
    this.lane.addEventListener("pointerover", ({ target }) => pointed(target.dataset.position ? Number(target.dataset.position) : null));
    this.lane.addEventListener("pointerleave", () => pointed(null));
    this.laid = null; // the frame whose cards are there
    this.room = null; // pixels that the lane has for blocks, once the page is laid out
    new ResizeObserver(() => (this.room = null)).observe(this.lane.parentElement);
  }

  /** Show ``picture`` (stage.js) or, with ``part`` {frame, place}, the next round up to one of its phases. ``quick``: rounds
      follow each other too fast for anything to move. */
  draw(picture, part, quick) {
    let at = picture.at;
    while (!part && at >= 0 && !picture.frames[at].round) at -= 1;
    const frame = part?.frame ?? picture.frames[at];
    if (!frame) return this.#empty();
    const place = part?.place ?? phasesOf(frame).length - 1;
    const seen = reached(frame, place);
    const { prompt } = picture.head;
    const wordAt = (position) => picture.tokens[position - prompt.length] ?? promptToken(prompt[position]);
    let before = prompt.length + picture.tokens.length; // tokens of the text before the round
    for (let seq = frame.seq; seq <= picture.at; seq += 1) before -= picture.frames[seq].tokens?.length ?? 0;
    if (this.laid !== frame) {
      this.root.classList.toggle("quick", quick);
      this.#lay(frame, Array.from({ length: Math.min(before, CONTEXT) }, (_, i) => wordAt(before - 1 - i).text).reverse().join(""));
    }
    this.#drawRound(frame, seen);
    this.root.classList.toggle("uncached", !picture.head.config.kv_cache);
    this.#drawLane(frame, frame.table ?? picture.table, picture.head.config, wordAt, before, seen);
  }

  #empty() {
    this.laid = null;
    this.$(".cards").replaceChildren();
    this.lane.replaceChildren();
    this.$(".stages").replaceChildren();
    for (const name of [".context span", ".tally"]) write(this.$(name), "");
    write(this.$("h2"), "One round");
  }

  #lay(frame, text) {
    const { round, step } = frame;
    const { drafts, verdicts, own } = round;
    this.laid = frame;
    write(this.$("h2"), step ? `${drafts.length ? "Round" : "Step"} ${step}` : "Prefill");
    this.$(".stages").replaceChildren(...stagesOf(frame).map(([name]) => make("li", "", name)));
    write(this.$(".context span"), text.slice(-CONTEXT));
    this.cards = drafts.map(({ text, q }, i) => this.#card(text, q, verdicts[i]?.p));
    this.own = own ? this.#card(own.text, undefined, own.p) : null;
    if (own) {
      this.own.className = `card own ${own.kind}`;
      write(this.own.querySelector(".glyph"), this.states[own.kind].glyph);
      this.own.style.gridColumn = own.kind === "recovered" ? verdicts.findIndex(({ accepted }) => !accepted) + 1 : drafts.length + 1;
    }
    this.cards.forEach((card, i) => (card.style.gridColumn = i + 1));
    this.$(".cards").replaceChildren(...this.cards, ...(own ? [this.own] : []));
  }

  #card(text, q, p) {
    const card = make("div", "card");
    const word = make("span", "word", text.trim() ? text.trim() : text.replaceAll("\n", "↵").replaceAll(" ", "␣"));
    word.translate = false;
    card.append(word, make("span", "glyph"));
    for (const [name, value] of [["q", q], ["p", p]]) {
      const bar = make("span", `bar-of ${name}`, value === undefined ? "" : `${name} ${number(value)}`);
      bar.style.setProperty("--share", value ?? 0);
      bar.classList.toggle("unknown", value === undefined);
      card.append(bar);
    }
    return card;
  }

  #drawRound(frame, seen) {
    const { drafts, verdicts } = frame.round;
    const stages = stagesOf(frame);
    const stopped = verdicts.findIndex(({ accepted }) => !accepted);
    for (const [i, stage] of [...this.$(".stages").children].entries()) stage.classList.toggle("now", stages[i][1].includes(seen.now));
    this.cards.forEach((card, i) => {
      const verdict = i < seen.verdicts ? verdicts[i] : null;
      const discarded = i >= verdicts.length && stopped >= 0 && seen.verdicts > stopped;
      const state = verdict ? (verdict.accepted ? "accepted" : "rejected") : discarded ? "unjudged" : "proposed";
      const kind = `card ${state} ${i >= seen.drafts ? "to-come" : ""} ${seen.read ? "read" : ""}`;
      if (card.className !== kind) card.className = kind;
      write(card.querySelector(".glyph"), this.states[state]?.glyph ?? "");
    });
    this.$(".cards").classList.toggle("sweeps", seen.now === "verify" && drafts.length > 0);
    this.own?.classList.toggle("to-come", !seen.own);
    write(this.$(".tally"), seen.over ? tallyOf(frame) : "");
  }

  /** The last blocks of the sequence's table that there is room for, each with its slots. */
  #drawLane({ round }, table, { block_size: size }, wordAt, before, seen) {
    this.room ??= this.lane.parentElement.clientWidth - NAME;
    const first = Math.max(0, table.length - Math.max(1, Math.floor(this.room / (size * SLOT + AROUND))));
    const shown = table.slice(first);
    while (this.lane.children.length > shown.length) this.lane.lastChild.remove();
    while (this.lane.children.length < shown.length) this.lane.append(block(size));
    write(this.$(".earlier"), first ? `+${first} before` : "");
    [...this.lane.children].forEach((node, i) => {
      const start = (first + i) * size;
      const freed = shown[i] === null; // its tokens slid out of the window
      const tokens = size > 8 ? `: tokens ${start}–${start + size - 1}` : ""; // there is no room beside a shorter block's
      write(node.firstChild, freed ? `Freed${tokens}` : `Block ${shown[i]}${tokens}`);
      [...node.lastChild.children].forEach((slot, at) => {
        const [state, text] = freed ? ["empty", ""] : slotOf(start + at, round, wordAt, before, seen);
        if (slot.className !== state) slot.className = state;
        if (slot.title !== text) slot.title = text;
        if (slot.dataset.position !== String(start + at)) slot.dataset.position = start + at;
      });
    });
  }
}

function block(size) {
  const node = make("div", "kv-block");
  const slots = make("div", "slots");
  slots.append(...Array.from({ length: size }, () => make("i")));
  node.append(make("span"), slots);
  return node;
}

/** What a slot holds at an instant of a round: its class, and the token in words. ``before``: tokens of the text before
    the round, the last of which is written in the round's own pass, like the draft tokens after it. */
function slotOf(position, { drafts, verdicts, written, kept }, wordAt, before, seen) {
  const settled = (state) => [state, `Token ${position}: ${quoted(wordAt(position).text ?? "")}`];
  if (position < before - 1 || (position < before && seen.read)) return position < kept ? settled(wordAt(position).origin) : ["empty", ""];
  const draft = position - before;
  if (!seen.read || position >= written || draft < 0) return ["empty", ""];
  const name = `Draft token ${draft + 1}: ${quoted(drafts[draft]?.text ?? "")}`;
  if (position >= kept && seen.rolledBack) return seen.over ? ["empty", ""] : ["drained", name];
  if (draft < seen.verdicts) return [verdicts[draft].accepted ? "accepted" : "rejected", name];
  return ["written", name];
}
