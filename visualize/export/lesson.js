// A lesson with no server: its recording (visualize/export/lessons.py) is shown once the learner has made a prediction,
// and answers are marked with the key that came with it. Its parts are those of the Lab's page.

const at = (id) => document.getElementById(id);
const lesson = JSON.parse(at("recorded").textContent);
const learner = { prediction: null, answer: null, done: [], ...kept() };

/** What the browser has kept of this lesson, as far as it makes sense. */
function kept() {
  try {
    const { name, prediction, answer, done } = JSON.parse(localStorage.getItem(lesson.kept)).lessons[lesson.number];
    if (name !== lesson.name || !places(lesson.predict.asked, prediction)) return {};
    return { prediction, answer: places(lesson.check.asked, answer) ? answer : null, done: [...done] };
  } catch {
    return {}; // nothing was, or nothing readable
  }
}

function keep(stage) {
  if (!learner.done.includes(stage)) learner.done.push(stage);
  const { prediction, answer, done } = learner;
  tell.course({ number: lesson.number, keep: { name: lesson.name, done, prediction, figures: null, tried: null, answer } });
}

// -- marking ---------------------------------------------------------------------------------

/** The indices of an answer among the options or stops, one for each point of a curve; null if it is not an answer. */
function places({ options, stops, x }, answer) {
  const found = [answer].flat().map((one) => (options ? options.findIndex((_, i) => i === one) : stops.findIndex(([stop]) => stop === one)));
  return found.length === (x ? x.at.length : 1) && !found.includes(-1) ? found : null;
}

/** Mark by the key (visualize/export/answers.py): a curve is near if most of its points are. */
function mark({ asked, key }, answer) {
  const given = places(asked, answer);
  const { right, found } = key;
  if (key.answers) {
    const [kind, said, feedback] = key.answers[given[0]];
    return { kind, said, right, found, feedback: key.feedback[feedback] };
  }
  const [near, ...repeats] = key.near.map((points) => 2 * given.filter((place, i) => points[i][place]).length > given.length);
  const kind = near ? "near" : repeats.includes(true) ? "noisy" : "far";
  const said = key.said.replace("{first}", asked.stops[given[0]][1]).replace("{last}", asked.stops[given.at(-1)][1]);
  return { kind, said, right, found, feedback: key.feedback[kind] };
}

// -- the stages ------------------------------------------------------------------------------

const does = {
  predict({ answer }) {
    learner.prediction = answer;
    keep("predict");
    ask();
  },
  change() {
    keep("try");
    tell.change(lesson.try.after);
  },
  check({ answer }) {
    learner.answer = answer;
    if (mark(lesson.check, answer).kind === "near") keep("check");
    else keep("run");
    check();
  },
};
const places_of = { course: "course", figure: "figure", predict: "predict", observe: "observe", change: "try", check: "check" };
const tell = {};
for (const [name, id] of Object.entries(places_of)) {
  const give = mount(name, at(id), (_, detail) => does[name]?.(detail));
  tell[name] = (record) => give(JSON.stringify(record));
}

function ask() {
  tell.predict({ ...lesson.predict.asked, given: learner.prediction });
  at("run").disabled = learner.prediction === null;
}

function show() {
  const found = mark(lesson.predict, learner.prediction);
  keep("run");
  at("run").disabled = true;
  at("actions").classList.add("over");
  tell.predict({ ...lesson.predict.asked, given: learner.prediction, locked: true, mark: found });
  at("explain").hidden = false;
  tell.change(lesson.try[learner.done.includes("try") ? "after" : "before"]);
  check();
  const transcript = at("transcript").textContent;
  at("stage").hidden = !transcript;
  if (transcript) mount("stage", at("stage"))(transcript);
  tell.observe({ over: true, fresh: true, ...found, panels: lesson.panels });
  const outcome = at("observe").querySelector(".outcome"); // whoever pressed the button goes on from here
  outcome.tabIndex = -1;
  outcome.focus({ preventScroll: true });
}

function check() {
  const { answer } = learner;
  const marked = answer === null ? {} : { mark: mark(lesson.check, answer), next: lesson.next };
  tell.check({ ...lesson.check.asked, given: answer, ...marked });
}

at("run").onclick = show;
tell.course({ number: lesson.number });
tell.figure(lesson.figure);
ask();
