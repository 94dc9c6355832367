// The Compare page, from JSON records: a record says what is new, the rest stays.

import { initialQuery, keepShown, keptShown, linkSelect, query, recordRun, updateAddress } from "../../static/address.js";
import { announcer, barOf, showGate } from "../../static/announce.js";
import { chartsOf } from "../../static/chart_panel.js";
import { body, counted, gently, make, narrow, say, tableRow, within, write } from "../../static/dom.js";
import { Race } from "../../static/race.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const { show, draw } = chartsOf(element, setup.shells);
  let running = false;
  let stale = false; // whether race and theory are of the comparison before
  let old = false; // whether bars and figures are
  let whole = null; // the record of a comparison that is over

  // The race's speed and the instant at which it was left are part of the link, as in the Lab's player: as long as it links
  // to this race.
  let wanted = parseFloat(initialQuery.get("at"));
  wanted = wanted >= 0 && wanted <= 100 ? wanted / 100 : null;
  document.addEventListener("decode-lab-other", () => (wanted = null));
  let remembering;
  const race = new Race($(".race"), setup.vocabulary, (share) => {
    clearTimeout(remembering); // browsers limit how often an address is rewritten
    remembering = setTimeout(() => {
      updateAddress({ at: share === null || query.get("run") !== "1" ? null : (100 * share).toFixed(1) });
    }, 250);
  });
  linkSelect("speed", race.pace);

  function read(record) {
    if (!record || (record.opening && initialQuery.size)) return; // a link asks for something else
    if (record.growth) return grown(record.growth);
    if (record.running !== running) {
      running = record.running;
      body.classList.toggle("running", running);
      $(".grow").disabled = running;
      if (running) race.stop();
      if (running && narrow.matches) $(".contest-head").scrollIntoView({ behavior: gently(), block: "start" });
    }
    if (!record.opening && (running || record.race)) recordRun(); // of a short one, perhaps only the end is heard
    $("[data-recording]").hidden = !record.opening;
    $("[data-recording]").title = record.opening ? `Measured on ${record.opening}` : "";
    tell(record.problem || record.progress || record.said?.[0] || "", record.tokens, record.problem);
    stale = !record.race && (running ? race.lanes.length > 0 : stale); // also when it is stopped before it has a race
    if (record.live) race.live(record.live);
    const lanes = race.measured && !record.race ? "as they are measured" : stale ? BEFORE : "";
    fillBar(record);
    if (record.gate || running) showGate($(".gate"), record.gate);
    $("[data-gate]").hidden = !(running && record.gate);
    write($("[data-gate]"), record.gate?.busy ? "Busy machine: measuring anyway" : "Quiet machine");
    $('[data-face="race"]').classList.toggle("stale", lanes === BEFORE);
    $('[data-face="theory"]').classList.toggle("stale", stale);
    old = !record.rows && (running ? Boolean($(".contest-lower tbody tr")) : old);
    $(".contest-lower").classList.toggle("stale", old);
    caption(".race", lanes);
    caption("[data-chart=bars]", old ? BEFORE : "");
    if (isNew("rows", record.rows)) fill($(".contest-lower table"), setup.columns, record.rows);
    if (isNew("charts", record.charts)) show(record.charts);
    if (record.said) $(".said").replaceChildren(...record.said.slice(1).map((text) => make("li", "", text)));
    else if (running) $(".said").replaceChildren();
    if (running || record.partings) part(record.partings ?? []);
    if (record.theory) predicted(record.theory);
    whole = record.race && !record.opening ? record : null;
    if (record.race) {
      race.load(record.race, true, wanted);
      wanted = null;
    }
    $(".contest").dataset.over = String(!record.running);
  }

  const BEFORE = "the comparison before";
  /** Name what is not as usual: still of the comparison before, or being measured. */
  function caption(panel, unusual) {
    const node = $(`${panel} .caption`);
    node.dataset.usual ??= node.textContent;
    write(node, unusual || node.dataset.usual);
  }

  const told = {};
  /** Whether a part of a record is there and is not as it was: while a run goes on, each record repeats the figures of the
      runs before. To draw them again would take time from an engine on this machine. */
  function isNew(name, part) {
    const text = JSON.stringify(part);
    const same = told[name] === text;
    told[name] = text;
    return Boolean(part) && !same;
  }

  const [announce, fillBar] = [announcer($(".heard")), barOf($(".contest-head"))];
  /** Show the progress. Tokens are counted on the screen only: screen readers are told of runs. */
  function tell(text, tokens, problem) {
    say($(".contest-say"), tokens === undefined ? text : `${text}, ${counted(tokens, "token")}`, problem);
    announce(text, running);
  }

  /** A table of settings: a mark and a name, and in every cell a figure with a small text beside it. */
  function fill(table, columns, rows) {
    // The columns' names, each with what it means: only once, because the focus may be on one of them.
    const named = ([label, about]) => make("th", { scope: "col", tabIndex: 0, dataset: { about } }, label);
    if (!table.tHead.rows.length) table.tHead.append(make("tr", "", make("td"), ...columns.map(named)));
    const cell = ([figure, small]) => make("td", "", figure, ...(small ? [" ", make("small", "", small)] : []));
    table.tBodies[0].replaceChildren(...rows.map(({ name, mark, cells }) => {
      const row = tableRow(` ${name}`, cells.map(cell));
      row.cells[0].prepend(make("span", "mark", mark));
      row.cells[0].title = name;
      return row;
    }));
  }

  function part(rows) {
    $(".partings").hidden = !rows.length;
    fill($(".partings table"), setup.partingColumns, rows);
  }

  function predicted({ charts, rows, missing }) {
    fill($(".theory table"), setup.theoryColumns, rows);
    $(".theory table").hidden = !rows.length;
    $(".missing").textContent = missing;
    const round = $('[data-chart="round"]');
    round.hidden = !rows.length;
    round.style.setProperty("--settings", rows.length);
    show(charts);
  }

  function grown({ running, progress, problem, charts, ...more }) {
    fillBar({ running, ...more });
    if (running) race.stop(); // nobody sees it, and it would take time from what is measured
    $(".grow").disabled = running;
    body.classList.toggle("running", running);
    say($(".grown"), problem ?? progress, problem);
    if (charts) show(charts);
  }

  // -- race and theory: two faces of one page ----------------------------------------------------

  function turn(face) {
    for (const part of element.querySelectorAll(".face")) part.hidden = part.dataset.face !== face;
    for (const button of element.querySelectorAll(".faces button")) button.ariaPressed = button.dataset.shows === face;
    draw();
  }

  for (const button of element.querySelectorAll(".faces button")) {
    button.onclick = () => {
      const face = button.dataset.shows;
      turn(face);
      updateAddress({ face: face === "race" ? null : face });
    };
  }

  $(".grow").onclick = () => gradio.trigger("submit");

  fill($(".contest-lower table"), setup.columns, []);
  predicted(setup.theory);
  turn(initialQuery.get("face") === "theory" ? "theory" : "race");
  keepShown(() => query.get("run") === "1" && whole && JSON.stringify(whole));
  if (keptShown) read(JSON.parse(keptShown));
  readRecords(gradio, read);
}
