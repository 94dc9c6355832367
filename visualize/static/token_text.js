// The text of the stage.

import { linkSelect } from "./address.js";
import { make, modified, placeTip, within } from "./dom.js";

const ROOM = 3; // pixels above a line; stage.css
const MOST_BITS = 6; // of entropy, that have a colour of their own
const LONGEST = 24; // most characters of several tokens that are kept on one line
/** What continues a word: letters (of scripts with spaces between words), digits, and what ends a word or a clause. */
const GOES_ON = /^[\p{L}\p{M}\p{N}.,:;!?'’"”)\]-]/u;
/** Letters that are written from right to left. */
const LEFTWARD = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/** They come rounded: a verdict's to as many digits as show what was decided (lab/trace/verdict_rounding.py). */
export const number = (value) => (value === undefined ? "" : value >= 1e-5 || value === 0 ? String(value) : value.toExponential());

/** A token of the prompt, which is mostly given as its text alone. */
export const promptToken = (given) => (typeof given === "object" ? given : { text: given, origin: "prompt" });

/** Show the text: every token with how it came to be, and what was rejected for it. */
export function addText(stage) {
  const { element } = stage;
  const { states, legend } = stage.setup.vocabulary;
  const $ = within(element);
  const story = $(".text");
  const flow = $(".flow"); // a paragraph within: else a screen reader names the group again at every space between words
  const shown = []; // the tokens on the page, each with its nodes
  let leftward = false; // whether there was a word of such letters
  $(".story .legend").append(...legend.map((key) => {
    const mark = make("span", "mark", states[key].glyph || "a");
    return make("li", key, mark, make("span", `piece ${key}`, states[key].label));
  }));

  /** The text's colours: how tokens came to be, the target's probability of them, or its entropy there (stage.css). */
  const tint = $(".tint");
  function colour() {
    story.dataset.tint = tint.value;
    const [low, high] = { p: ["p = 0", "1"], bits: ["0", `${MOST_BITS} bits or more`] }[tint.value] ?? [];
    $(".scale").replaceChildren(...(low ? [low, make("i"), high] : []));
  }
  linkSelect("colour", tint);
  tint.addEventListener("change", colour);
  colour();

  /** Show the picture's text. Tokens that are already on the page are left alone. */
  function drawText({ head, tokens, frame }) {
    const wanted = [...head.prompt, ...tokens];
    let same = 0;
    while (same < shown.length && shown[same].token === wanted[same]) same += 1;
    if (!same) {
      leftward = false;
      flow.dir = "";
      flow.replaceChildren();
      story.replaceChildren(flow); // nothing else
    }
    for (const { nodes } of shown.splice(same)) nodes.forEach((node) => node.remove());
    if (shown.length) arrange(shown.at(-1).mark.parentNode);
    for (const token of wanted.slice(same)) append(token);
    const now = wanted.length - (frame.tokens?.length ?? 0);
    tint.options[2].disabled = !tokens.some(({ bits }) => bits !== undefined); // a file of an earlier version
    shown.forEach(({ mark }, index) => mark.classList.toggle("now", index >= now));
    if (focused && !focused.isConnected) focusOn(null); // its line goes with it
  }

  /** One token: its leading space, the marked piece of a word, and above it the glyph or what was rejected. */
  function append(given) {
    const token = promptToken(given);
    const [space, piece] = [token.text.match(/^ */)[0], token.text.replace(/^ */, "")];
    const mark = make("span", `token ${token.origin}${token.special ? " special" : ""}`, make("span", "word", piece || "\u2009"));
    mark.style.setProperty("--p", token.p ?? 0);
    mark.style.setProperty("--bits", Math.min(1, (token.bits ?? 0) / MOST_BITS));
    const above = annotation(token);
    const breaks = document.createTextNode("\n".repeat(piece.split("↵").length - 1));
    const nodes = [mark, above, breaks];
    const before = shown.at(-1);
    const length = piece.length + (before?.length ?? 0); // of the word so far
    const goesOn = before && !space && !before.breaks.data && GOES_ON.test(piece) && !UNSPACED.test(piece) && length <= LONGEST;
    const word = goesOn ? before.mark.parentNode : make("span", "lexeme");
    if (!goesOn) {
      word.around = [document.createTextNode(space), document.createTextNode("")];
      nodes.push(word.around[0], word, word.around[1]);
      flow.append(...nodes.slice(-3));
    }
    direct(word, piece);
    word.append(mark, above);
    flow.append(breaks);
    for (const node of [mark, above]) node.dataset.index = shown.length;
    shown.push({ token: given, about: token, mark, nodes, breaks, length: goesOn ? length : piece.length });
    arrange(word);
  }

  /** The text goes where its first letters go. A word is a box, which for browsers goes neither way; between invisible
      marks it goes where its letters go. As long as nothing goes leftward, no word needs them. */
  function direct(word, piece) {
    const letter = piece.match(/\p{L}/u)?.[0];
    if (word.dir || !letter) return;
    word.dir = LEFTWARD.test(letter) ? "rtl" : "ltr";
    flow.dir ||= word.dir;
    leftward ||= word.dir === "rtl";
    if (leftward) for (const node of word.around) node.data += word.dir === "rtl" ? "\u200f" : "\u200e";
  }

  function annotation({ origin, rejected: [first] = [] }) {
    // Read aloud, the text would fall apart: the arrow keys tell each token's story.
    const above = make("span", { className: `above ${origin}`, ariaHidden: true });
    if (first) above.append(states.rejected.glyph, make("s", "", first.text.trim() || first.text));
    else if (origin !== "plain") above.append(states[origin].glyph);
    return above;
  }

  /** Pieces of a word are close together. What was rejected for one of them may be longer than that piece: it extends
      over the next ones, whose glyphs are hidden (their lines say the same), and makes room after the word. */
  function arrange(word) {
    const marks = [...word.querySelectorAll(".token")];
    const aboves = [...word.querySelectorAll(".above")];
    const long = aboves.map((above) => above.firstElementChild !== null);
    word.style.setProperty("--pieces", marks.length);
    marks.forEach((mark, i) => {
      const next = long.indexOf(true, i + 1) + 1;
      mark.style.gridColumn = i + 1;
      aboves[i].style.gridColumn = long[i] ? `${i + 1} / ${next || -1}` : i + 1;
      aboves[i].hidden = !long[i] && long.lastIndexOf(true, i) >= 0;
    });
  }

  /** Whether the text is scrolled to its end, where new tokens appear. */
  const atEnd = () => story.scrollHeight - story.scrollTop - story.clientHeight < 40;
  /** Scroll to the end, with a whole line, and what is above it, first in view. */
  function toEnd() {
    story.scrollTop = story.scrollHeight;
    const top = story.scrollTop;
    let first;
    for (let i = shown.length - 1; top && shown[i]?.mark.parentNode.offsetTop >= top; i -= 1) first = shown[i].mark.parentNode;
    const cut = first ? first.offsetTop - ROOM - top : 0;
    if (cut < 1) return;
    story.style.paddingBottom = `${parseFloat(getComputedStyle(story).paddingBottom) + cut}px`;
    story.scrollTop = story.scrollHeight;
  }
  new ResizeObserver(() => (story.style.paddingBottom = "")).observe(story, { box: "border-box" });

  // -- a token explains itself -------------------------------------------------------------------

  /** The head's sentence for a state, with a token's numbers in it. */
  function sentence(state, values) {
    return stage.picture.head.sentences[state].replace(/\{(\w+)\}/g, (_, name) => number(values[name]));
  }

  /** A token's story: a paragraph for it, and one for each draft token that was rejected for it. */
  function explained(token) {
    const line = (state, text, words) =>
      make("p", state, make("b", "", `“${text}” ${states[state].glyph}`), ` ${states[state].label}. ${words}`);
    const rejected = (token.rejected ?? []).map((draftToken) => {
      const state = draftToken.p === undefined ? "unjudged" : "rejected";
      return line(state, draftToken.text, sentence(state, draftToken));
    });
    return [line(token.origin, token.text, token.note ?? sentence(token.origin, token)), ...rejected];
  }

  /** The token that is pointed at, directly or through what is above it. */
  const markOf = (target) => shown[target.closest("[data-index]")?.dataset.index]?.mark;

  function explain(mark) {
    const tip = $(".tip");
    tip.replaceChildren(...explained(shown[mark.dataset.index].about));
    tip.hidden = false;
    placeTip(tip, mark, { centred: true, first: $(".stage").getBoundingClientRect().left + 4, gap: 8 });
  }

  const hideTip = () => ($(".tip").hidden = true);
  let pointed = "";
  story.addEventListener("pointerover", (event) => {
    const mark = markOf(event.target);
    const here = `${event.clientX} ${event.clientY}`;
    if (mark && here !== pointed) explain(mark);
    else hideTip(); // nobody asks about a token that slid under a pointer at rest
    pointed = here;
  });
  story.addEventListener("pointerleave", ({ pointerType }) => pointerType === "touch" || ((pointed = ""), hideTip())); // a finger leaves when it is lifted
  document.addEventListener("pointerdown", ({ target }) => story.contains(target) || hideTip());
  story.addEventListener("scroll", hideTip);
  story.addEventListener("blur", () => focusOn(null));

  story.addEventListener("click", ({ target }) => (focused = markOf(target) ?? focused)); // keys go on from there
  let focused = null;
  function focusOn(mark) {
    focused?.classList.remove("focused");
    focused = mark;
    if (!mark) return hideTip();
    mark.classList.add("focused");
    mark.scrollIntoView({ block: "nearest" });
    explain(mark);
    $(".heard").textContent = $(".tip").textContent;
    if (stage.opened) stage.openToken(mark);
  }

  story.addEventListener("keydown", (event) => {
    const ahead = flow.matches(":dir(rtl)") ? -1 : 1;
    const step = { ArrowRight: ahead, ArrowLeft: -ahead, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !shown.length || modified(event)) return;
    event.preventDefault();
    const from = focused ? Number(focused.dataset.index) : step > 0 ? -1 : shown.length;
    focusOn(shown[Math.min(Math.max(from + step, 0), shown.length - 1)].mark);
  });

  Object.assign(stage, { story, shown, drawText, explained, markOf, hideTip, atEnd, toEnd, focusedToken: () => focused });
}
