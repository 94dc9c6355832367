// The text: every token with how it came to be, and what was refused for it.

const { vocabulary } = setup;
const states = vocabulary.states;
const story = $(".text");
/** Keeps a word that is several tokens on one line. */
const JOINER = "\u2060";
const ROOM = 3; // pixels above a line; stage.css
const shown = []; // the tokens that stand there, each with its nodes

for (const key of vocabulary.legend) {
  const item = make("li", key);
  item.append(make("span", "mark", states[key].glyph || "a"), make("span", `piece ${key}`, states[key].label));
  $(".legend").append(item);
}

/** Make the text that of the picture. Those tokens that stand there already are left alone. */
function drawText({ head, tokens, frame }) {
  const wanted = [...head.prompt, ...tokens];
  let same = 0;
  while (same < shown.length && shown[same].token === wanted[same]) same += 1;
  if (!same) story.replaceChildren(); // whatever else stood there
  for (const { nodes } of shown.splice(same)) nodes.forEach((node) => node.remove());
  for (const token of wanted.slice(same)) append(token);
  const now = wanted.length - (frame.tokens?.length ?? 0);
  shown.forEach(({ mark }, index) => mark.classList.toggle("now", index >= now));
}

/** One token: its leading space, the marked word, and above it the glyph and what was refused. */
function append(given) {
  const token = typeof given === "string" ? { text: given, origin: "prompt" } : given;
  const [space, word] = [token.text.match(/^ */)[0], token.text.replace(/^ */, "")];
  const mark = make("span", `token ${token.origin}`);
  mark.dataset.index = shown.length;
  mark.append(make("span", "word", word || "\u2009"), annotation(token));
  const breaks = word.split("↵").length - 1;
  const nodes = [document.createTextNode(space || JOINER), mark, document.createTextNode("\n".repeat(breaks))];
  story.append(...nodes);
  shown.push({ token: given, about: token, mark, nodes });
}

function annotation({ origin, refused = [] }) {
  const above = make("span", "above");
  if (refused.length) {
    above.append(`${states.rejected.glyph}`, make("s", "", refused[0].text.trim() || refused[0].text));
    if (refused.length > 1) above.append(make("span", "more", `+${refused.length - 1}`));
  } else if (origin !== "plain") {
    above.append(states[origin].glyph);
  }
  return above;
}

/** Whether the text stands at its end, where new tokens come. */
const atEnd = () => story.scrollHeight - story.scrollTop - story.clientHeight < 40;
/** To the end; what is first in view is a whole line, with what stands above it. */
function toEnd() {
  story.scrollTop = story.scrollHeight;
  const top = story.scrollTop;
  let first;
  for (let i = shown.length - 1; top && shown[i]?.mark.offsetTop >= top; i -= 1) first = shown[i].mark;
  const cut = first ? first.offsetTop - ROOM - top : 0;
  if (cut < 1) return;
  story.style.paddingBottom = `${parseFloat(getComputedStyle(story).paddingBottom) + cut}px`;
  story.scrollTop = story.scrollHeight;
}
new ResizeObserver(() => (story.style.paddingBottom = "")).observe(story, { box: "border-box" });

// -- a token explains itself -------------------------------------------------------------------

/** Three digits, so that a quotient is that of the numbers beside it. */
const number = (value) => (value === undefined ? "" : value >= 0.001 || value === 0 ? String(Number(value.toPrecision(3))) : value.toExponential(2));

/** What the run's head says of a state, with a token's numbers in it. */
function sentence(state, values) {
  const filled = { ...values, ratio: values.q ? values.p / values.q : undefined };
  return picture.head.sentences[state].replace(/\{(\w+)\}/g, (_, name) => number(filled[name]));
}

/** A token's story, a paragraph each for it and for what was refused for it. */
function explained(token) {
  const line = (state, text, words) => {
    const row = make("p", state);
    row.append(make("b", "", `“${text}” ${states[state].glyph}`), ` ${states[state].label}. ${words}`);
    return row;
  };
  const refused = (token.refused ?? []).map((guess) => {
    const state = guess.p === undefined ? "unjudged" : "rejected";
    return line(state, guess.text, sentence(state, guess));
  });
  return [line(token.origin, token.text, token.note ?? sentence(token.origin, token)), ...refused];
}

function explain(mark) {
  const tip = $(".tip");
  tip.replaceChildren(...explained(shown[mark.dataset.index].about));
  tip.hidden = false;
  const at = mark.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const first = $(".stage").getBoundingClientRect().left + 4;
  const left = Math.min(Math.max(first, at.left + at.width / 2 - box.width / 2), innerWidth - box.width - 8);
  const below = at.bottom + 8 + box.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 8 : at.top - box.height - 8}px`;
}

const hideTip = () => ($(".tip").hidden = true);
let pointed = "";
story.addEventListener("pointerover", (event) => {
  const mark = event.target.closest(".token");
  const here = `${event.clientX} ${event.clientY}`;
  if (mark && here !== pointed) explain(mark);
  else hideTip(); // nobody asks about a token that slid under a pointer at rest
  pointed = here;
});
story.addEventListener("pointerleave", ({ pointerType }) => pointerType === "touch" || hideTip()); // a finger leaves when it is lifted
document.addEventListener("pointerdown", ({ target }) => story.contains(target) || hideTip());
story.addEventListener("scroll", hideTip);
story.addEventListener("blur", () => focusOn(null));

story.addEventListener("click", ({ target }) => (focused = target.closest(".token") ?? focused)); // from there keys go on
let focused = null;
function focusOn(mark) {
  focused?.classList.remove("focused");
  focused = mark;
  if (!mark) return hideTip();
  mark.classList.add("focused");
  mark.scrollIntoView({ block: "nearest" });
  explain(mark);
  if (opened) openToken(mark);
}

story.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined || !shown.length) return;
  event.preventDefault();
  const from = focused?.isConnected ? Number(focused.dataset.index) : step > 0 ? -1 : shown.length;
  focusOn(shown[Math.min(Math.max(from + step, 0), shown.length - 1)].mark);
});
