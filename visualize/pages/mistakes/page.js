// The Mistakes page: cards in ``setup``, and JSON records of their runs (visualize/pages/mistakes/cards.py).

import { initialQuery, keepShown, keptShown, updateAddress } from "../../static/address.js";
import { announcer, barOf } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { body, button, gently, make, say, tableRow, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

const QUESTIONS = {
  outcome: { crash: "It crashes.", other: "It writes something else.", slow: "It is slower. What it writes is right." },
  noticed: { true: "Yes", false: "No" },
};
const OUTCOMES = { crash: "It crashes.", other: "It writes something else.", slow: "It is slower.", right: "It is right." };

export function mount(element, gradio, setup) {
  const $ = within(element);
  const cards = new Map(setup.cards.map((card) => [card.id, { ...card, given: {}, found: null, chosen: null, repaired: null }]));
  const [announce, fillBar] = [announcer($(".heard")), barOf($(".under-way"))];
  const linked = initialQuery.get("card");
  let now = cards.has(linked) ? linked : setup.cards[0].id;
  let running = null; // the card and repair in progress
  const card = () => cards.get(now);
  const coloured = (spans) => spans.map(([kind, text]) => (kind ? make("span", kind, text) : text));

  function read(record) {
    if (!record) return;
    running = record.running ? record : null;
    body.classList.toggle("running", record.running);
    if (cards.has(record.open)) now = record.open;
    const at = cards.get(record.card);
    if (at && record.evidence) {
      if (record.repair === null) Object.assign(at, { found: record.evidence });
      else at.repaired = { ...record.evidence, repair: record.repair };
    }
    const said = record.problem ?? record.progress;
    tell(said, record.problem, record.repair);
    fillBar(record);
    announce(record.evidence ? record.evidence.say : said, record.running);
    if (!record.card || record.evidence || record.open !== undefined) show();
    else buttons();
    if (record.evidence && record.card === now) {
      const part = record.repair === null ? ".evidence" : ".evidence.repaired";
      $(part).scrollIntoView({ behavior: gently(), block: "nearest" });
    }
  }

  /** Say something below the button that it is about. */
  function tell(text, problem, repair) {
    const below = typeof repair === "number" ? ".repair" : ".run";
    if ($(".under-way").parentElement !== $(below)) $(below).append($(".under-way"));
    say($(".progress"), text, problem);
  }

  // -- the list ----------------------------------------------------------------------------------

  for (const { id, number, title } of cards.values()) {
    const link = make("a", { href: `?card=${id}` }, make("b", "", number), make("span", "", title));
    link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      now = id;
      updateAddress({ card: id });
      if (!running) tell("");
      show();
    };
    $(".cards-list ol").append(make("li", { dataset: { card: id } }, link));
  }

  // -- a card ------------------------------------------------------------------------------------

  function show() {
    const { id, number, title, does, code, lesson, found, repaired } = card();
    for (const item of element.querySelectorAll(".cards-list li")) {
      const { found: ran, repaired: again } = cards.get(item.dataset.card);
      item.className = again?.outcome === "right" ? "whole" : ran ? "begun" : "";
      if (item.dataset.card === id) item.firstChild.setAttribute("aria-current", "page");
      else item.firstChild.removeAttribute("aria-current");
    }
    $(".card").dataset.card = id;
    $(".card h2").textContent = `${number} · ${title}`;
    $(".does").textContent = does;
    const [before, fault, after] = code.map(coloured);
    const marked = found ? make("mark", "", ...fault) : make("span", "", ...fault);
    $(".code").replaceChildren(...before, marked, ...after);
    const link = make("a", { href: `lessons?lesson=${lesson[0]}` }, `lesson ${lesson[0]}, ${lesson[1]}`);
    const exercise = make("code", "", `python -m lessons exercise ${number}`);
    $(".origin").replaceChildren("It belongs to ", link, ". As an exercise: ", exercise);
    for (const ask of Object.keys(QUESTIONS)) question(ask);
    evidence($(".evidence"), found, "found");
    repairs();
    evidence($(".evidence.repaired"), repaired, "repaired");
    buttons();
    draw();
  }

  function question(ask) {
    const { given, found } = card();
    const set = $(`[data-ask=${ask}]`);
    const labels = Object.entries(QUESTIONS[ask]).map(([value, text]) => {
      const input = make("input", { type: "radio", name: ask, value, checked: given[ask] === value, disabled: Boolean(found) });
      input.onchange = () => ((given[ask] = value), buttons());
      const right = found && String(found[ask]) === value;
      const mark = right ? "✓ correct" : found && given[ask] === value ? "✗ your answer" : "";
      return make("label", right ? "right" : "", input, text, make("small", "", mark));
    });
    set.replaceChildren(set.querySelector("legend"), ...labels);
  }

  /** Fill a part with what a run showed; ``found``: null before there is any. */
  function evidence(part, found, which) {
    part.hidden = !found;
    part.replaceChildren(part.querySelector("h3"));
    if (!found) return;
    const { id, why, repairs } = card();
    part.append(make("p", `conclusion ${found.outcome}`, make("b", "", OUTCOMES[found.outcome]), ` ${found.say}`));
    const said = which === "found" ? why : repairs[found.repair].reply;
    part.append(make("p", "why", said));
    const shown = make("div", "shown");
    if (found.text) shown.append(texts(found.text, found.outcome));
    if (found.numbers.length) shown.append(numbers(found.numbers));
    if (found.chart) {
      const name = `${which}-${id}`;
      shown.append(make("figure", { className: "chart", dataset: { chart: name } }, make("div", { className: "plot", ariaLabel: "This code beside the right code" })));
    }
    part.append(shown);
  }

  function texts([prompt, same, mine, right], outcome) {
    const line = (name, [first, rest]) => {
      const mark = first ? [make("mark", "", first)] : [];
      return [make("h4", "", name), make("p", "", make("span", "given", prompt), same, ...mark, rest)];
    };
    const differ = mine[0] || right[0];
    const both = differ ? [...line("This code", mine), ...line("Right", right)] : line("This code, and the right one", mine);
    return make("div", { className: `texts ${outcome}` }, ...both);
  }

  function numbers(rows) {
    const head = make("tr", "", make("td"), make("th", { scope: "col" }, "This code"), make("th", { scope: "col" }, "Right"));
    const lines = rows.map(([label, mine, right]) => tableRow(label, [mine, right], mine === right ? "" : "differs"));
    return make("table", "", make("thead", "", head), make("tbody", "", ...lines));
  }

  function repairs() {
    const { found, chosen, repaired } = card();
    const form = $(".repair");
    form.hidden = !found;
    const set = form.querySelector("fieldset");
    const labels = card().repairs.map(({ code, right }, place) => {
      const input = make("input", { type: "radio", name: "repair", value: place, checked: chosen === place });
      input.onchange = () => ((card().chosen = place), buttons());
      const ran = repaired?.repair === place;
      const mark = ran ? (right ? "✓ right" : "✗ not this one") : "";
      return make("label", ran ? (right ? "right" : "wrong") : "", input, make("pre", "code", ...coloured(code)), make("small", "", mark));
    });
    set.replaceChildren(set.querySelector("legend"), ...labels);
  }

  function buttons() {
    const { given, chosen } = card();
    const [go, again] = [$(".run .go"), $(".repair .go")];
    go.ariaDisabled = Boolean(running) || !(given.outcome && given.noticed);
    again.ariaDisabled = Boolean(running) || chosen === null;
    const [first, next] = card().found ? [again, go] : [go, again];
    first.setAttribute("aria-keyshortcuts", "Control+Enter");
    next.removeAttribute("aria-keyshortcuts");
    for (const halt of element.querySelectorAll(".halt")) halt.ariaDisabled = !running;
  }

  function ask(repair, missing) {
    if (running) return;
    if (missing) return tell(missing, true, repair);
    gradio.trigger("submit", { card: now, repair });
  }

  $(".run .go").onclick = () => {
    const { given } = card();
    ask(null, given.outcome && given.noticed ? "" : "Answer both questions first.");
  };
  $(".repair .go").onclick = () => ask(card().chosen ?? -1, card().chosen === null ? "Choose one of the three first." : "");
  for (const halt of element.querySelectorAll(".halt")) halt.onclick = () => running && gradio.trigger("stop");
  for (const form of element.querySelectorAll("form")) form.onsubmit = (event) => event.preventDefault();

  function draw() {
    const { id, found, repaired } = card();
    for (const [which, one] of Object.entries({ found, repaired })) {
      if (one?.chart) drawChart(element, setup.shells, `${which}-${id}`, one.chart);
    }
  }

  // Whoever comes back from another page finds the cards as they were.
  const KEPT = ["given", "found", "chosen", "repaired"];
  for (const [id, kept] of JSON.parse(keptShown ?? "[]")) Object.assign(cards.get(id) ?? {}, kept);
  keepShown(() => JSON.stringify([...cards.values()].map((one) => [one.id, Object.fromEntries(KEPT.map((name) => [name, one[name]]))])));
  onLook(draw);
  show();
  readRecords(gradio, read);
}
