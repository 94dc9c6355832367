// The stage: reads a run's transcript (visualize/reduce/ndjson.py) and shows the picture of one instant of it.
// What anything means was decided in Python. The files of this folder are parts of one function of
// (element, props, trigger, server, watch), in the order given by the page that shows it (visualize/reduce/run_script.py,
// visualize/pages/pool/page.py), with ``setup`` and elements.js before them.
// The Lab's stage and the Pool's share all but these functions, which each has in lab.js or pool.js:
//   drawOwn(picture)  draw what is neither a chart nor a number
//   moved()           another instant is shown
//   covered(name)     whether something covers this chart
//   relook()          the look has changed between light and dark

const { readouts, shells } = setup;
const charts = Object.keys(shells);
const start = Object.fromEntries(charts.map((name) => [name, shells[name].start]));

for (const { always, ...told } of readouts) $(".readouts").append(Object.assign(readout(told), { hidden: !always }));

/** Whether this is a lesson, which shows the prediction's outcome first and the run below it. */
const inLesson = () => Boolean(element.closest(".lessons"));

// -- the run: what is read of it -----------------------------------------------------------------

let run = { id: "", running: false };
let picture = new Picture(start);

/** A run was requested. What is on the stage stays, pale, until the new run has something to show: it may be the
    presenter's, or another setting's. */
function begin(id) {
  run = { id, running: true, own: !led };
  unasked = false;
  $(".stage").dataset.run = id;
  const before = Boolean(picture.frame);
  $(".stage").classList.toggle("waits", before);
  const pale = before ? " Pale parts are from before." : "";
  if (led) return sayNow(`The presenter shows a run …${pale}`);
  sayNow(`Waiting for the engine …${pale}`);
  quietUntil = 0;
  body.classList.add("running");
  if (server && narrow.matches && !inLesson()) element.scrollIntoView({ behavior: gently(), block: "start" });
}

/** Read a transcript. Its first line names the run; the rest follows or, for a live run, arrives through a channel. */
function read(transcript) {
  const [first, second] = transcript.split("\n", 2);
  if (!first || run.id === first) return;
  const { problem } = JSON.parse(second || "{}");
  if (problem) return refuse(problem);
  begin(first);
  const { run: id, live, against } = JSON.parse(first);
  run.against = against;
  if (!led && live) window.decodeLab.ran();
  else if (!led) window.decodeLab.address({ run: null }); // no link restores a run from a file
  stream?.close();
  if (live) return listen(id);
  hear(transcript.slice(first.length));
  if (run.running) endEarly();
}

/** Offer a link to another page with the settings of the run that is shown, once that run is over. */
function offer(href, title) {
  const link = $(".against");
  link.hidden = !href || run.running || picture.id !== JSON.parse(run.id).run;
  if (link.hidden || link.getAttribute("href") === href) return; // nothing is written again while it is played
  Object.assign(link, { href, title });
}

/** A file ends before its run does. */
function endEarly() {
  over();
  follow(); // what a link asks for is there, or does not come
  sayNow("This run was saved while it was going on: its file ends here.");
}

const READ = 5000; // milliseconds: enough to read why a file was refused
/** A file that is refused changes nothing. What a run says meanwhile has to wait. */
function refuse(problem) {
  sayNow(problem, true);
  if (run.running) quietUntil = performance.now() + READ;
}

let stream;
function listen(id) {
  const gone = () => {
    if (!run.running) return; // it was heard to its end
    over();
    sayNow(`The server no longer has this run: it may have been restarted.${led ? "" : " Press Run to begin again."}`, true);
    schedule();
  };
  const lost = () => run.running && sayNow(UNREACHED);
  const found = () => run.running && sayNow("The lab answers again.");
  stream = hearChannel(id, { hear, gone, lost, found });
}

function hear(lines) {
  for (const line of lines.split("\n").filter(Boolean)) take(JSON.parse(line));
  follow();
  schedule();
}

function take(record) {
  if (record.status) {
    sayNow(record.status);
    quietUntil = 0; // what follows is said at once
  }
  if (record.problem || record.stopped) {
    over();
    sayNow(record.problem ?? record.stopped, Boolean(record.problem));
  }
  if (record.cut) endEarly();
  if (record.seq === undefined) return;
  if (record.head) open(record.head);
  picture.frames.push(record);
  if (record.finished) over();
}

/** Whether the address restores what is shown: on a page with no server, always; in the Lab, a run made here, unless its
    settings were changed since. */
const linked = () => !server || (picture.own && window.decodeLab.query.get("run") === "1");

let drawnSeed; // as the address of a run has it, where the field for it is empty: the next run's is another
/** The first frame of a new run: from here on the stage shows it. */
function open(head) {
  $(".stage").classList.remove("waits");
  picture = new Picture(start);
  picture.id = JSON.parse(run.id).run;
  picture.own = run.own && !head.recorded; // made here, by this person
  charts.forEach((name) => dirty.add(name));
  const device = document.querySelector("#device");
  if (device) {
    const models = `${head.target}${head.draft ? ` + ${head.draft}` : ""}`; // last: where there is little room the end is cut off
    device.textContent = device.title = `${head.recorded ? "recorded" : "measured"} on ${head.accelerator} · ${head.dtype} · ${models}`;
  }
  const seed = window.decodeLab.query.get("seed");
  if (!head.recorded && linked() && (seed === "" || seed === drawnSeed)) window.decodeLab.address({ seed: (drawnSeed = String(head.sampling.seed)) });
  rewind();
}

function over() {
  run.running = false;
  unasked = false;
  body.classList.remove("running");
  $(".stage").classList.remove("waits");
  charts.forEach((name) => dirty.add(name)); // at rest every row is drawn
}

// -- the picture: what is shown of it --------------------------------------------------------------

const PACE = 80; // least milliseconds between pictures of a live run: the engine may be on this machine
let scheduled = false;
let rested = 0;
let remaining; // timer for charts that had to wait
/** Draw with the next animation frame, but rest for as long as drawing took: a slow browser then shows fewer frames,
    not old ones. While a run is played every tick of the player draws. */
function schedule() {
  if (scheduled || mode === "playing") return;
  scheduled = true;
  setTimeout(() => requestAnimationFrame(() => {
    const began = performance.now();
    scheduled = false;
    draw();
    rested = Math.max(2 * performance.now() - began, live() ? began + PACE : 0);
  }), Math.max(0, rested - performance.now()));
}

function draw() {
  if (picture.frame) {
    drawOwn(picture);
    drawNumbers(picture);
  }
  for (const [text, how, speak] of words.splice(0)) speak(text, how);
  drawControls();
  drawCharts(picture);
  $(".stage").dataset.seq = picture.at;
  $(".stage").setAttribute("aria-busy", dirty.size > 0); // charts lag behind
  clearTimeout(remaining);
  if (!dirty.size || !window.Plotly) return;
  if (live()) remaining = setTimeout(schedule, Math.max(0, chartsDue - performance.now()));
  else schedule();
}

/** The numbers and remarks; a readout without a row does not matter to this run. */
function drawNumbers({ head, own, readouts: rows, notice, compared }) {
  for (const card of element.querySelectorAll(".readout")) card.hidden = !(card.dataset.key in rows);
  for (const [key, row] of Object.entries(rows)) fillReadout($(`[data-key=${key}]`), row);
  write($(".notice"), notice);
  const told = [own ? "" : head.described, compared].filter(Boolean).join(". "); // one's own settings are on the controls
  write($(".compared"), told);
  $(".compared").title = told;
}

const HEARD = 2000; // milliseconds between sentences for screen readers, of a live run and of one that is led
let heardAt = 0;
let quietUntil = 0;
let pendingWords;
let pendingLingers = false;
/** Say the step's sentence, at most three times a second: nobody reads faster. A rare one waits its turn and
    lingers, or an audience would never see it. */
function say(text, lingers = false, failed = false) {
  if (pendingLingers && !lingers) return;
  clearTimeout(pendingWords);
  const speak = () => {
    quietUntil = performance.now() + (lingers ? 1500 : 330);
    pendingLingers = false;
    const plays = mode === "playing" || mode === "looping";
    const aloud = !unasked || (!plays && performance.now() > heardAt + HEARD);
    if (aloud) heardAt = performance.now();
    $(".say").setAttribute("aria-live", aloud ? "polite" : "off");
    $(".say").textContent = text;
    $(".say").classList.toggle("problem", failed);
    fitWords();
  };
  const wait = quietUntil - performance.now();
  if (wait <= 0) return speak();
  pendingLingers = lingers;
  pendingWords = setTimeout(speak, wait);
}

/** Make a sentence smaller that would be cut off. */
function fitWords() {
  const line = $(".say");
  line.classList.remove("long");
  line.classList.toggle("long", line.scrollHeight > line.clientHeight);
}
window.addEventListener("resize", fitWords);

/** Say at once what belongs to the beginning, the end, or a step at which a person stopped. */
function sayNow(text, failed = false) {
  words = [];
  quietUntil = 0;
  pendingLingers = false;
  say(text, false, failed);
}
