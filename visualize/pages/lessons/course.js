// The list of lessons with their completed stages, and the progress that the browser stores:
// {format, lessons: {number: ``Learner.kept`` of visualize/pages/lessons/learner.py}}.

import { download, foldWhenNarrow, make, narrow, relist, store, stored, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const FORMAT = "decode-lab-progress";
  const STAGES = ["predict", "run", "try", "check"];
  let number = 0;

  function load() {
    try {
      return accepted(stored(setup.kept) ?? "{}");
    } catch {
      return {};
    }
  }

  /** The lessons in a progress file's text. Throws a sentence if it is not such a file. */
  function accepted(text) {
    let file;
    try {
      file = JSON.parse(text);
    } catch {
      throw "This file cannot be read as JSON. Choose one that this page exported.";
    }
    if (text === "{}") return {};
    const lessons = file?.format === FORMAT ? file.lessons : null;
    if (lessons === null || typeof lessons !== "object" || Array.isArray(lessons)) {
      throw "This file holds no progress of this course. Choose one that this page exported.";
    }
    const known = new Set(setup.lessons.map((lesson) => String(lesson.number)));
    const makesSense = ([key, kept]) =>
      known.has(key) && Array.isArray(kept?.done) && JSON.stringify(kept).length <= setup.most;
    return Object.fromEntries(Object.entries(lessons).filter(makesSense));
  }

  function save(lessons) {
    const keeps = store(setup.kept, JSON.stringify({ format: FORMAT, lessons }));
    $(".kept-here").hidden = !keeps;
    if (!keeps) say("The browser does not let this page keep your progress.");
  }

  const runsOf = (lesson) => `${setup.kept}-runs-${lesson}`;

  /** Keep this lesson's recorded runs (visualize/pages/lessons/learner.py), for its charts, in place of earlier ones. */
  function saveRuns(runs) {
    store(runsOf(number), null);
    const fits = runs && store(runsOf(number), runs); // empty: more than the server would pack
    say(fits ? "" : "The browser has no room for what this lesson recorded. After a reload, run it again to see its charts.");
  }

  const say = (text) => ($(".course-say").textContent = text);

  function read(record) {
    if (!record) return;
    const first = !number;
    number = record.number;
    if (record.keep) {
      const lessons = load(); // again: another tab may have kept something
      const before = lessons[number]?.name === record.keep.name ? lessons[number] : { done: [] };
      const done = STAGES.filter((stage) => record.keep.done.includes(stage) || before.done.includes(stage));
      save({ ...lessons, [number]: { ...together(before, record.keep), done } });
      if (record.runs !== undefined) saveRuns(record.runs);
    }
    draw();
    if (first && !narrow.matches) $("[aria-current]").scrollIntoView({ block: "nearest" });
  }

  /** What to keep of a lesson that went on in two tabs: the last run, and everything that is about it. */
  function together(before, now) {
    if (before.figures && !now.figures) return before;
    if (JSON.stringify(before.figures) !== JSON.stringify(now.figures)) return now;
    return { ...now, tried: now.tried ?? before.tried, answer: now.answer ?? before.answer };
  }

  let drawn; // what was kept of this lesson
  // Another tab kept something, perhaps of this lesson.
  window.addEventListener("storage", ({ key }) => {
    if (key !== setup.kept) return;
    const before = drawn;
    draw();
    if (drawn !== before) say("This lesson went on in another tab. Load this page again to see it here.");
  });

  function draw() {
    const kept = load();
    drawn = JSON.stringify(kept[number]);
    relist($("ol"), setup.lessons.map((lesson) => entry(lesson, kept[lesson.number])));
    const finished = setup.lessons.filter((lesson) => doneOf(lesson, kept[lesson.number]).includes("check")).length;
    $("summary").textContent = `${finished} of ${setup.lessons.length} lessons done`;
    works($('[data-does="again"]'), Boolean(kept[number]), "There is nothing done in this lesson yet.");
    works($('[data-does="export"]'), Object.keys(kept).length > 0, "There is no progress yet: predict, run, try or check something.");
  }

  /** One that cannot be pressed keeps its place among the Tab stops, and says ``why``. */
  function works(button, does, why) {
    button.ariaDisabled = does ? null : "true";
    if (does) delete button.dataset.about;
    else button.dataset.about = why;
  }

  const doneOf = ({ name }, kept) => (kept?.name === name ? kept.done : []);

  function entry(lesson, kept) {
    const done = doneOf(lesson, kept);
    const whole = done.includes("check");
    const steps = make("span", {
      className: "steps",
      title: done.length ? `Done: ${done.join(", ")}` : "Not begun",
      role: "img", // so that the link's name includes its lesson's progress
      ariaLabel: whole ? "finished" : done.length ? `begun: ${done.join(", ")}` : "not begun",
    }, ...STAGES.map((stage) => make("i", done.includes(stage) ? "done" : "")));
    const words = [make("b", "", lesson.title), " ", make("small", "", `${lesson.minutes} min`), " ", steps];
    const sign = make("span", `sign${whole ? " whole" : ""}`, whole ? "✓" : lesson.number);
    const link = make("a", { href: lesson.href }, sign, " ", make("span", "words", ...words));
    if (lesson.number === number) link.ariaCurrent = "page";
    return make("li", "", link);
  }

  $('[data-does="again"]').onclick = ({ currentTarget }) => {
    if (currentTarget.ariaDisabled) return;
    const { [number]: _, ...rest } = load();
    save(rest);
    store(runsOf(number), null);
    location.reload();
  };

  $('[data-does="export"]').onclick = ({ currentTarget }) => {
    if (currentTarget.ariaDisabled) return;
    download("decode-lab-progress.json", "application/json", JSON.stringify({ format: FORMAT, lessons: load() }));
  };

  const file = $("input[type=file]");
  $('[data-does="import"]').onclick = () => file.click();
  file.onchange = async () => {
    try {
      const lessons = accepted(await file.files[0].text());
      save({ ...load(), ...lessons });
      location.reload();
    } catch (problem) {
      say(String(problem));
    }
    file.value = "";
  };

  $(".served").hidden = !setup.served;
  if (setup.served) for (const link of element.querySelectorAll(".served a")) link.href = link.dataset.to;
  foldWhenNarrow($("details"));
  readRecords(gradio, read);
}
