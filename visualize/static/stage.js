// The stage: reads a run's transcript (visualize/reduce/frames.py) and shows the picture of one instant of it.
// What anything means was decided in Python. Its parts are added by stage_charts.js and player.js and, in the Lab,
// by token_text.js and verification.js (run_page.js).

import { initialQuery, keepShown, keptShown, query, recordRun, updateAddress } from "./address.js";
import { addSentences } from "./announce.js";
import { BlockGrid } from "./block_grid.js";
import { onLook } from "./chart_panel.js";
import { body, closeOutside, download, fillReadout, gently, make, narrow, readout, within, write } from "./dom.js";
import { besideField } from "./gradio.js";
import { addPlayer } from "./player.js";
import { UNREACHED, openChannel } from "./sse.js";
import { addCharts } from "./stage_charts.js";

/** Create the stage of a page: what its parts share, by name. ``element``: the component. ``gradio``: its {props, trigger,
    server, watch}. The page adds
      drawOwn(picture)  draws what is neither a chart nor a number nor a block
      moved()           another instant is shown
    and may replace
      covered(name)     whether something covers this chart
      relook()          the look has changed between light and dark. */
export function createStage(element, { props, server, trigger, watch }, setup) {
  const $ = within(element);
  const { readouts, shells } = setup;
  const charts = Object.keys(shells);
  const start = Object.fromEntries(charts.map((name) => [name, shells[name].start]));
  const stage = {
    element,
    server,
    setup,
    shells,
    charts,
    run: { id: "", running: false },
    picture: new RunState(start),
    opened: null, // {seq, position}: a frame, and the draft token in its round whose verification is shown
    dirty: new Set(), // charts to be drawn
    pans: 0, // what a person panned and zoomed is kept until this changes
    covered: () => false,
    relook() {},
  };
  stage.squares = new BlockGrid($(".squares"), schedule);
  addSentences(stage, $(".say"));
  const { sayNow } = stage;
  for (const large of [true, false]) {
    const some = readouts.filter((one) => one.large === large);
    $(".readouts").append(make("div", large ? "large" : "rest", ...some.map(({ always, ...named }) => Object.assign(readout(named), { hidden: !always }))));
  }

  /** Whether this is a lesson, which shows the prediction's outcome first and the run below it. */
  const inLesson = () => Boolean(element.closest(".lessons"));

  // -- the run: what is read of it -----------------------------------------------------------------

  /** A run was requested. What is on the stage stays, pale, until the new run has something to show: it may be the
      presenter's, or another setting's. */
  function begin(id) {
    stage.run = { id, running: true, own: !stage.led };
    besideField("");
    stage.unasked = false;
    $(".stage").dataset.run = id;
    const before = Boolean(stage.picture.frame);
    $(".stage").classList.toggle("waits", before);
    const pale = before ? " Pale parts are from before." : "";
    if (stage.led) return sayNow(`The presenter shows a run …${pale}`);
    sayNow(`Waiting for the engine …${pale}`);
    stage.hush(0);
    body.classList.add("running");
    const { top } = element.getBoundingClientRect();
    const away = top < 0 || top > innerHeight / 2; // its beginning is out of view, or below open settings
    if (server && narrow.matches && away && !inLesson()) element.scrollIntoView({ behavior: gently(), block: "start" });
  }

  /** Read a transcript. Its first line names the run; the rest follows or, for a live run, arrives through a channel. */
  function read(transcript) {
    const [first, second] = transcript.split("\n", 2);
    if (!first || stage.run.id === first) return;
    const { problem } = JSON.parse(second || "{}");
    if (problem) return refuse(problem);
    const { run: id, live, against, opening, kept } = JSON.parse(first);
    if (opening && (stage.run.id || initialQuery.size || stage.led)) return; // a link asks for something else
    begin(first);
    stage.opening = Boolean(opening);
    $(".stage").classList.toggle("opens", stage.opening);
    Object.assign(stage.run, { against, live });
    stage.kept = kept;
    if (!stage.led && live) recordRun();
    else if (!stage.led && !kept) updateAddress({ run: null }); // no link restores a run from a file
    stream?.close();
    if (live) return listen(id);
    hear(transcript.slice(first.length));
    if (stage.run.running) endEarly();
  }

  /** Offer a link to another page with the settings of the run that is shown, once that run is over. */
  function offer(href, title) {
    const link = $(".against");
    link.hidden = !href || stage.run.running || stage.picture.id !== JSON.parse(stage.run.id).run;
    if (link.hidden || link.getAttribute("href") === href) return; // nothing is written again while it is played
    Object.assign(link, { href, title });
  }

  /** A file ends before its run does. */
  function endEarly() {
    over();
    stage.follow(); // what a link asks for is there, or does not come
    sayNow("This run was saved while it was going on: its file ends here.");
  }

  const READ = 5000; // milliseconds: enough to read why a file was refused
  /** A file that is refused changes nothing. What a run says meanwhile has to wait. */
  function refuse(problem) {
    sayNow(problem, true);
    if (stage.run.running) stage.hush(READ);
  }

  let stream;
  function listen(id) {
    const gone = () => {
      if (!stage.run.running) return; // it was heard to its end
      over();
      sayNow(`The server no longer has this run: it may have been restarted.${stage.led ? "" : " Press Run to begin again."}`, true);
      schedule();
    };
    const lost = () => stage.run.running && sayNow(UNREACHED);
    const found = () => stage.run.running && sayNow("The lab answers again.");
    stream = openChannel(id, { hear, gone, lost, found });
  }

  function hear(lines) {
    for (const line of lines.split("\n").filter(Boolean)) take(JSON.parse(line));
    stage.follow();
    schedule();
  }

  function take(record) {
    if (record.status) {
      sayNow(record.status);
      stage.loads(record.share ?? null);
      stage.hush(0); // what follows is said at once
    }
    if (record.problem || record.stopped) {
      const before = record.problem && $(".stage").matches(".waits"); // what is shown is no answer: it stays pale
      over();
      $(".stage").classList.toggle("waits", Boolean(before));
      sayNow(`${record.problem ?? record.stopped}${before ? " Pale parts are from before." : ""}`, Boolean(record.problem));
      if (record.problem) besideField(record.problem);
    }
    if (record.cut) endEarly();
    if (record.seq === undefined) return;
    if (record.head) open(record.head);
    stage.picture.frames.push(record);
    if (!record.finished) return;
    over();
    if (stage.run.live && stage.picture.own && stage.picture.frames[0].head.chat) trigger("end", { run: stage.picture.id });
  }

  /** Whether the address restores what is shown: on a page with no server, always; in the Lab, a run made here, unless its
      settings were changed since. */
  const linked = () => !server || (stage.picture.own && query.get("run") === "1");

  let drawnSeed; // as the address of a run has it, where the field for it is empty: the next run's is another
  /** The first frame of a new run: from here on the stage shows it. */
  function open(head) {
    $(".stage").classList.remove("waits");
    stage.picture = new RunState(start);
    stage.picture.id = JSON.parse(stage.run.id).run;
    stage.picture.own = stage.run.own && !head.recorded; // made here, by this person
    charts.forEach((name) => stage.dirty.add(name));
    const device = document.querySelector("#device");
    if (device) {
      const models = `${head.target}${head.draft ? ` + ${head.draft}` : ""}`;
      const where = head.recorded ? [] : [`measured on ${head.accelerator}`]; // else the notice says where it was recorded
      device.textContent = device.title = [...where, head.dtype, models].join(" · ");
    }
    const seed = query.get("seed");
    if (!head.recorded && linked() && (seed === "" || seed === drawnSeed)) updateAddress({ seed: (drawnSeed = String(head.sampling.seed)) });
    stage.rewind();
  }

  function over() {
    stage.run.running = false;
    stage.unasked = false;
    body.classList.remove("running");
    $(".stage").classList.remove("waits");
    charts.forEach((name) => stage.dirty.add(name)); // at rest every row is drawn
  }

  // -- the picture: what is shown of it --------------------------------------------------------------

  const PACE = 80; // least milliseconds between pictures of a live run: the engine may be on this machine
  let scheduled = false;
  let rested = 0;
  /** Draw with the next animation frame, but rest for as long as drawing took: a slow browser then shows fewer frames,
      not old ones. While a run is played every tick of the player draws. */
  function schedule() {
    if (scheduled || stage.mode === "playing") return;
    scheduled = true;
    setTimeout(() => requestAnimationFrame(() => {
      const began = performance.now();
      scheduled = false;
      draw();
      rested = Math.max(2 * performance.now() - began, stage.live() ? began + PACE : 0);
    }), Math.max(0, rested - performance.now()));
  }

  function draw() {
    if (stage.picture.frame) {
      stage.squares.show(stage.picture);
      stage.drawOwn(stage.picture);
      drawNumbers(stage.picture);
    }
    for (const [text, how, speak] of stage.words.splice(0)) speak(text, how);
    stage.drawControls();
    stage.drawCharts(stage.picture);
    $(".stage").dataset.seq = stage.picture.at;
    $(".stage").setAttribute("aria-busy", stage.dirty.size > 0); // charts lag behind
    if (stage.dirty.size && window.Plotly) schedule();
  }

  /** The numbers and remarks; a readout without a row does not matter to this run. */
  function drawNumbers({ head, own, readouts: rows, notice, compared }) {
    for (const card of element.querySelectorAll(".readout")) card.hidden = !(card.dataset.key in rows);
    for (const [key, row] of Object.entries(rows)) fillReadout($(`[data-key=${key}]`), row);
    write($(".notice"), notice);
    const told = [own ? "" : head.described, compared].filter(Boolean).join(". "); // one's own settings are on the controls
    write($(".compared"), told);
    $(".remarks").title = [notice, told].filter(Boolean).join(" · ");
  }

  /** The run that is shown, as ``read`` takes it; null: none of one's own that is over. */
  function transcript() {
    const { run, picture } = stage;
    if (run.running || stage.opening || stage.led || !linked()) return null;
    return [{ run: picture.id, against: run.against, kept: true }, ...picture.frames].map((part) => `${JSON.stringify(part)}\n`).join("");
  }

  /** Show the component's value, now and whenever it changes. */
  function show() {
    watch("value", () => (stage.leave(), read(props.value ?? "")));
    if (server && !inLesson()) keepShown(transcript);
    if (keptShown) read(keptShown);
    read(props.value ?? "");
  }

  Object.assign(stage, { inLesson, linked, read, offer, over, schedule, draw, show });
  addCharts(stage);
  addPlayer(stage);
  addSaveMenu(stage);
  onLook(() => {
    stage.relook();
    charts.forEach((name) => stage.dirty.add(name));
    schedule();
  });
  return stage;
}

/** Offer the run that is shown for downloading, where there is a server. */
function addSaveMenu(stage) {
  const { element } = stage;
  const $ = within(element);
  const save = $(".save");
  save.hidden = !stage.server;
  closeOutside(save);
  for (const button of element.querySelectorAll("[data-save]")) {
    button.onclick = async () => {
      save.open = false;
      const answer = await stage.server.take_away([stage.picture.id, button.dataset.save]).catch(() => undefined);
      const { problem, name, type, text } = answer ?? { problem: "The server does not answer. Is it still running? The run stays here: try again." };
      if (problem) return stage.sayNow(problem, true);
      download(name, type, text);
    };
  }
}

/** A run at one instant: its frames (visualize/reduce/frames.py), applied up to one of them. It can go forward and back, and
    knows nothing of the page. tests/visualize/picture.py does the same in Python. */
export class RunState {
  /** The state before the first frame; ``start`` has each chart's first columns. */
  constructor(start = {}) {
    this.frames = [];
    this.at = -1;
    this.head = null;
    this.tokens = [];
    this.columns = structuredClone(start);
    this.layouts = Object.fromEntries(Object.keys(start).map((name) => [name, {}]));
    this.captions = {};
    this.readouts = {};
    this.table = [];
    this.say = this.notice = this.compared = "";
    this.undo = [];
  }

  get last() {
    return this.frames.length - 1;
  }

  get frame() {
    return this.frames[this.at];
  }

  /** The last step of the run so far. */
  get steps() {
    return Math.max(0, ...this.frames.slice(-2).map((frame) => frame.step));
  }

  /** Go to a frame, forward or back. Returns the names of the charts that have changed. */
  go(seq) {
    const changed = new Set();
    const to = Math.min(Math.max(seq, -1), this.last);
    while (this.at !== to) {
      const frame = this.frames[this.at < to ? this.at + 1 : this.at];
      if (this.at < to) this.#forward(frame);
      else this.#back();
      for (const part of [frame.columns, frame.charts, frame.layout, frame.captions]) Object.keys(part ?? {}).forEach((name) => changed.add(name));
    }
    return changed;
  }

  /** Let ``read`` see the run at another frame. */
  glance(seq, read) {
    const { at } = this;
    this.go(seq);
    read(this);
    this.go(at);
  }

  #forward(frame) {
    const { head, columns, layouts, captions, readouts, table, say, notice, compared } = this;
    const undo = { state: { head, columns, layouts, captions, readouts, table, say, notice, compared }, tokens: this.tokens.length, rows: [] };
    this.at += 1;
    this.undo[this.at] = undo;
    this.head = frame.head ?? head;
    this.tokens.push(...(frame.tokens ?? []));
    // What an undo keeps is replaced, never changed; only rows are changed in place.
    if (frame.columns) this.columns = { ...columns, ...structuredClone(frame.columns) };
    for (const [name, patches] of Object.entries(frame.charts ?? {})) {
      for (const [trace, index, row] of patches) undo.rows.push([name, trace, index, this.#put(name, trace, index, row)]);
    }
    if (frame.layout) {
      this.layouts = { ...layouts };
      for (const [name, paths] of Object.entries(frame.layout)) this.layouts[name] = { ...layouts[name], ...paths };
    }
    if (frame.captions) this.captions = { ...captions, ...frame.captions };
    if (frame.readouts) this.readouts = { ...readouts, ...frame.readouts };
    this.table = frame.table ?? table;
    this.say = frame.say ?? say;
    this.notice = frame.notice ?? notice;
    this.compared = frame.compared ?? compared;
  }

  #back() {
    const { state, tokens, rows } = this.undo[this.at];
    this.at -= 1;
    for (const [name, trace, index, row] of rows.reverse()) {
      if (index !== null) this.#put(name, trace, index, row);
      else for (const column of Object.keys(row)) this.columns[name][trace][column].pop();
    }
    this.tokens.length = tokens;
    Object.assign(this, state);
  }

  /** Set a row, or append it when ``index`` is null. Returns what was there, or what was appended. */
  #put(name, trace, index, row) {
    const before = {};
    for (const [column, value] of Object.entries(row)) {
      const values = (this.columns[name][trace][column] ??= []);
      before[column] = index === null ? value : values[index];
      if (index === null) values.push(value);
      else values[index] = value;
    }
    return before;
  }
}
