// The Claims page: the claims in ``setup``, and JSON records of their results (visualize/pages/claims/checks.py).

import { query, updateAddress } from "../../static/address.js";
import { announcer } from "../../static/announce.js";
import { drawChart, onLook } from "../../static/chart_panel.js";
import { body, make, store, stored, within, write } from "../../static/dom.js";
import { recordReader } from "../../static/sse.js";

export function mount(element, { props, trigger, server, watch }, setup) {
  const $ = within(element);
  const { shells, verdicts } = setup;
  const NONE = setup.server ? "No numbers yet: they come from this machine." : "No numbers: it was not checked when these pages were made.";
  const rows = new Map(); // by the claim's id: its parts, and its result
  const announce = announcer($(".heard"));
  let running = false;

  function read(record) {
    running = record.running;
    body.classList.toggle("running", running);
    $(".check-stop").ariaDisabled = !running; // not disabled, so that it keeps the focus
    for (const button of element.querySelectorAll(".check, .check-all")) button.ariaDisabled = running;
    for (const [id, found] of Object.entries(record.checked)) show(rows.get(id), found);
    if (setup.server) remember();
    for (const [id, row] of rows) under(row, running && id === record.now, record.step);
    const step = record.step && record.of > 1 ? ` · ${record.step}` : "";
    const said = record.problem ?? `${record.progress ?? ""}${step}`;
    write($(".claims-say"), said);
    announce(said, running);
    $(".claims-say").classList.toggle("problem", Boolean(record.problem));
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
    const found = [...rows.values()].filter((row) => row.found && !row.claim.arithmetic).map((row) => [row.claim.id, row.found]);
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
    const head = make("tr", "claim");
    head.dataset.claim = claim.id;
    const verdict = make("td", "verdict unchecked");
    const quote = make("button", "quote", `“${claim.quote}”`);
    quote.type = "button";
    const said = make("th", "said");
    said.scope = "row";
    const why = make("p", "why");
    said.append(quote, make("span", "source", claim.source), why);
    const act = make("td", "act");
    const check = make("button", "check", "Check it here");
    check.type = "button";
    act.append(check);
    head.append(verdict, said, act);

    const more = make("tr", "more");
    more.hidden = true;
    more.id = `claim-${claim.id}`;
    quote.setAttribute("aria-controls", more.id);
    const cell = make("td");
    cell.colSpan = 3;
    const grid = make("div", "detail");
    const told = make("div", "told");
    const needs = make("div", "needs");
    told.append(...fact("What is tested", claim.tested), ...fact("The rule", `${claim.rule} ${claim.noise}`.trim()), needs);
    const figures = make("div", "numbers");
    const chart = make("figure", "chart");
    chart.dataset.chart = claim.id;
    chart.hidden = true;
    chart.append(make("div", "plot"));
    chart.firstChild.setAttribute("aria-label", `What was measured of “${claim.quote}”`);
    grid.append(told, figures, chart);
    cell.append(grid);
    more.append(cell);

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

  /** Show a claim's result, or that there is none yet. */
  function show(row, found) {
    if (!row || (found && row.found && JSON.stringify(row.found) === JSON.stringify(found))) return;
    row.found = found;
    const state = verdicts[found?.verdict];
    row.verdict.className = `verdict ${found?.verdict ?? "unchecked"}`;
    row.verdict.replaceChildren(make("span", "glyph", state?.glyph ?? "·"), make("span", "word", state?.label ?? "not checked"));
    row.needs.replaceChildren(...(found?.needs ? fact("What would make it true", found.needs) : []));
    row.figures.replaceChildren(found?.numbers ? numbers(found) : make("p", "none", NONE));
    row.chart.hidden = !found?.chart;
    under(row);
    draw(row);
  }

  function numbers({ numbers, took }) {
    const table = make("table");
    const body = make("tbody");
    for (const [label, text, kind, spread] of numbers) {
      const line = make("tr", kind);
      const name = make("th", "", label);
      name.scope = "row";
      const figure = make("td", "figure", text);
      if (spread) figure.append(make("small", "", spread));
      line.append(name, figure, make("td", "kind", kind));
      body.append(line);
    }
    table.append(make("caption", "", took), body);
    return table;
  }

  /** What a row's button does and, for screen readers, for which claim. */
  function press({ check, claim, found }, now = false) {
    write(check, now ? "Checking …" : verdicts[found?.verdict] ? "Check again" : "Check it here");
    check.setAttribute("aria-label", `${check.textContent}: ${claim.quote}`);
  }

  /** A row whose experiment is in progress says so; any other, why its verdict is as it is, or why there is none. */
  function under(row, now = false, step = "") {
    const { problem, why = "" } = row.found ?? {};
    row.head.classList.toggle("now", now);
    press(row, now);
    write(row.why, now ? step || "Getting ready …" : (problem ?? why));
    row.why.classList.toggle("problem", Boolean(problem) && !now);
  }

  function turn(row, open, byHand = false) {
    if (!row) return;
    row.more.hidden = !open;
    row.head.classList.toggle("open", open);
    row.quote.setAttribute("aria-expanded", String(open));
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
    trigger("submit", { claims: ids });
  }

  function tally() {
    const counts = Object.fromEntries(Object.keys(verdicts).map((word) => [word, 0]));
    let left = 0;
    for (const { found } of rows.values()) {
      if (found?.verdict) counts[found.verdict] += 1;
      else left += 1;
    }
    const parts = Object.entries(counts).map(([key, count]) => {
      const part = make("span", `count ${key}`);
      part.append(make("span", "glyph", verdicts[key].glyph), make("b", "", String(count)), ` ${verdicts[key].label}`);
      return part;
    });
    const rest = make("span", "count unchecked");
    rest.append(make("b", "", String(left)), " not checked");
    $(".tally").replaceChildren(...parts, rest);
  }

  for (const topic of new Set(setup.claims.map((claim) => claim.topic))) {
    const body = make("tbody");
    const title = make("tr", "topic");
    const name = make("th", "", topic);
    name.colSpan = 3;
    name.scope = "rowgroup";
    title.append(name);
    body.append(title);
    for (const claim of setup.claims.filter((claim) => claim.topic === topic)) {
      const row = build(claim);
      rows.set(claim.id, row);
      body.append(row.head, row.more);
    }
    $(".claims-table").append(body);
  }
  tally();

  $(".check-all").onclick = () => ask(setup.claims.map((claim) => claim.id));
  $(".check-stop").onclick = () => running && trigger("stop");

  onLook(() => rows.forEach(draw));
  if (setup.server) recall();
  const readValue = recordReader(read);
  watch("value", () => readValue(props.value));
  readValue(props.value);
}
