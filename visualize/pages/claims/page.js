// The Claims page: the claims in ``setup``, and JSON records of their results (visualize/pages/claims/checks.py).

import { query, updateAddress } from "../../static/address.js";
import { announcer, barOf, showGate } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { body, button, make, say, store, stored, tableRow, within, write } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const { trigger } = gradio;
  const { shells, verdicts } = setup;
  const NONE = setup.server ? "No numbers yet: they come from this machine." : "No numbers: it was not checked when these pages were made.";
  const rows = new Map(); // by the claim's id: its parts, and its result
  const [announce, fillBar] = [announcer($(".heard")), barOf(element)];
  let running = false;

  function read(record) {
    if (!record) return;
    running = record.running;
    body.classList.toggle("running", running);
    $(".check-stop").ariaDisabled = !running; // not disabled, so that it keeps the focus
    for (const button of element.querySelectorAll(".check, .check-all")) button.ariaDisabled = running;
    for (const [id, found] of Object.entries(record.checked)) show(rows.get(id), found);
    if (setup.server) remember();
    for (const [id, row] of rows) under(row, running && id === record.now, record.step);
    const step = record.step && record.of > 1 ? ` · ${record.step}` : "";
    const said = record.problem ?? `${record.progress ?? ""}${step}`;
    say($(".claims-say"), said, record.problem);
    announce(said, running);
    fillBar(record);
    if (record.gate || running) showGate($(".gate"), record.gate);
    tally();
    const asked = rows.get(record.open);
    turn(asked, true);
    asked?.head.scrollIntoView({ block: "start" });
  }

  // -- what was checked before -------------------------------------------------------------------

  const KEPT = "decode-lab-claims";
  let written = "";

  /** Keep the results as long as this tab and its server: another page of the lab, or a reload, does not lose them. */
  function remember() {
    const found = [...rows.values()].filter((row) => row.found && !row.found.recorded && !row.claim.arithmetic).map((row) => [row.claim.id, row.found]);
    const text = JSON.stringify({ server: setup.server, checked: Object.fromEntries(found) });
    if (text !== written && store(KEPT, text, "sessionStorage")) written = text;
  }

  /** Show what this tab kept of the same server. */
  function recall() {
    const { server, checked } = JSON.parse(stored(KEPT, "sessionStorage") ?? "{}");
    if (server === setup.server) for (const [id, found] of Object.entries(checked)) show(rows.get(id), found);
  }

  // -- a row -------------------------------------------------------------------------------------

  function build(claim) {
    const verdict = make("td", "verdict unchecked");
    const quote = button({ className: "quote" }, claim.says);
    const why = make("p", "why");
    const said = make("th", { className: "said", scope: "row" }, quote, make("span", "source", claim.source), why);
    const check = button({ className: "check" }, "Check it here");
    const head = make("tr", { className: "claim", dataset: { claim: claim.id } }, verdict, said, make("td", "act", check));

    const needs = make("div", "needs");
    const rule = fact("The rule", `${claim.rule} ${claim.noise}`.trim());
    const told = make("div", "told", ...fact("What is tested", claim.tested), ...rule, needs);
    const figures = make("div", "numbers");
    const plot = make("div", { className: "plot", ariaLabel: `What was measured of: ${claim.says}` });
    const chart = make("figure", { className: "chart", hidden: true, dataset: { chart: claim.id } }, plot);
    const cell = make("td", { colSpan: 3 }, make("div", "detail", told, figures, chart));
    const more = make("tr", { className: "more", hidden: true, id: `claim-${claim.id}` }, cell);
    quote.setAttribute("aria-controls", more.id);

    const row = { claim, head, verdict, why, check, quote, more, needs, figures, chart, found: null };
    quote.onclick = () => turn(row, row.more.hidden, true);
    check.onclick = () => ask([claim.id], row);
    show(row, null);
    turn(row, false);
    return row;
  }

  function fact(title, text) {
    return [make("h2", "", title), make("p", "", text)];
  }

  /** Show a claim's result, or that there is none yet. The recorded one does not replace one that was found here. */
  function show(row, found) {
    if (found?.recorded && row?.found && !row.found.recorded) return;
    if (!row || (found && row.found && JSON.stringify(row.found) === JSON.stringify(found))) return;
    row.found = found;
    const state = verdicts[found?.verdict];
    row.verdict.className = `verdict ${found?.verdict ?? "unchecked"}`;
    row.verdict.replaceChildren(make("span", "glyph", state?.glyph ?? "·"), make("span", "word", state?.label ?? "not checked"), ...(found?.recorded ? [make("small", "", "recorded")] : []));
    row.needs.replaceChildren(...(found?.needs ? fact("What would make it true", found.needs) : []));
    row.figures.replaceChildren(found?.numbers ? numbers(found) : make("p", "none", NONE));
    row.chart.hidden = !found?.chart;
    under(row);
    draw(row);
  }

  function numbers({ numbers, took }) {
    const lines = numbers.map(([label, text, kind, spread]) => {
      const figure = make("td", "figure", text, ...(spread ? [make("small", "", spread)] : []));
      return tableRow(label, [figure, make("td", "kind", kind)], kind);
    });
    return make("table", "", make("caption", "", took), make("tbody", "", ...lines));
  }

  /** What a row's button does and, for screen readers, for which claim. */
  function press({ check, claim, found }, now = false) {
    write(check, now ? "Checking …" : verdicts[found?.verdict] && !found.recorded ? "Check again" : "Check it here");
    check.ariaLabel = `${check.textContent}: ${claim.says}`;
  }

  /** A row whose experiment is in progress says so; any other, why its verdict is as it is, or why there is none. */
  function under(row, now = false, step = "") {
    const { problem, why = "" } = row.found ?? {};
    row.head.classList.toggle("now", now);
    press(row, now);
    say(row.why, now ? step || "Getting ready …" : (problem ?? why), problem && !now);
  }

  function turn(row, open, byHand = false) {
    if (!row) return;
    row.more.hidden = !open;
    row.head.classList.toggle("open", open);
    row.quote.ariaExpanded = open;
    draw(row);
    if (!byHand) return;
    const { id } = row.claim;
    if (open) updateAddress({ claim: id });
    else if (query.get("claim") === id) updateAddress({ claim: null });
  }

  function draw(row) {
    const chart = row.found?.chart;
    if (row.more.hidden || !chart) return;
    row.chart.style.height = chart.shell === "bars" ? `${110 + 24 * chart.columns[0].y.length}px` : "250px";
    drawChart(element, shells, row.claim.id, chart);
  }

  // -- all of them -------------------------------------------------------------------------------

  function ask(ids, row) {
    if (running) return;
    if (row) turn(row, true, true);
    trigger("submit", { claims: ids, careful: $(".careful input").checked });
  }

  function tally() {
    const found = [...rows.values()].map((row) => row.found?.verdict);
    const parts = Object.entries(verdicts).filter(([key]) => found.includes(key)).map(([key, { glyph, label }]) => {
      const count = found.filter((verdict) => verdict === key).length;
      return make("span", `count ${key}`, make("span", "glyph", glyph), make("b", "", count), ` ${label}`);
    });
    const left = found.filter((verdict) => !verdict).length;
    $(".tally").replaceChildren(...parts, make("span", "count unchecked", make("b", "", left), " not checked"));
  }

  for (const topic of new Set(setup.claims.map((claim) => claim.topic))) {
    const title = make("tr", "topic", make("th", { colSpan: 3, scope: "rowgroup" }, topic));
    const body = make("tbody", "", title);
    for (const claim of setup.claims.filter((claim) => claim.topic === topic)) {
      const row = build(claim);
      rows.set(claim.id, row);
      body.append(row.head, row.more);
    }
    $(".claims-table").append(body);
  }
  tally();

  write($(".careful span"), `Careful: ${setup.careful} times the repeats`);
  $(".check-all").onclick = () => ask(setup.claims.map((claim) => claim.id));
  $(".check-stop").onclick = () => running && trigger("stop");

  onLook(() => rows.forEach(draw));
  if (setup.server) recall();
  readRecords(gradio, read);
}
