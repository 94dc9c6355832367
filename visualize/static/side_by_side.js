// Two runs of the Lab on one clock: a run and the same without speculation (or with, if it had none) or, if the settings
// were changed since, with those of now; or any two of the last ten.

import { query } from "./address.js";
import { make, within, write } from "./dom.js";
import { Race } from "./race.js";
import { promptToken } from "./token_text.js";

const NOISE = 0.1; // visualize/reduce/metric_cards.py
const MARKS = "●■";
const SAME = ["prompt", "token_ids", "seed", "system", "messages", "thinking", "raw"]; // visualize/pages/lab/page.py
const NO_SETTINGS = ["run", "step", "guess", "at", "speed", "chart", "colour"];
const TOLD = {
  false: ["Side by side", "The same prompt and seed with and without speculation; both on one clock"],
  true: ["Before and after", "The same prompt and seed with the settings before and now; both on one clock"],
};
/** What the address says of the settings, but for what both runs have in common. */
function settingsNow() {
  const asked = new URLSearchParams(query);
  for (const name of [...SAME, ...NO_SETTINGS]) asked.delete(name);
  return `${asked}`;
}

/** Add the panel to a stage. Returns {ask, show, look, close}: ask for both runs, or for the other one if the first is shown;
    show two pictures; look what has come of the runs that were asked for. Until both are there, the stage is ``paired``. */
export function addSideBySide(stage, trigger) {
  const $ = within(stage.element);
  const panel = $(".beside");
  const race = new Race(panel, stage.setup.vocabulary, (share) => share === null && conclude());
  let first = null; // the picture for which another run was asked
  let pair = [];
  let asked = null; // the settings of the last run here
  const changed = () => asked !== null && settingsNow() !== asked;

  function offer() {
    const [name, title] = TOLD[changed()];
    write($(".twice"), name);
    $(".twice").title = title;
  }
  document.addEventListener("decode-lab-address", offer);

  function ask() {
    if (stage.picture.own) return askFor(stage.picture);
    document.querySelector("#run").click();
    stage.paired = true;
  }

  function askFor(picture) {
    first = picture;
    stage.paired = true;
    trigger("select", { run: first.id, changed: changed() });
  }

  function look(picture) {
    if (!stage.paired || !picture.own) return;
    const { finished } = picture.frames.at(-1);
    if (first && first !== picture && finished) return show(first, picture);
    stream(first && first !== picture ? [first, picture] : [picture]);
    if (first || !finished) return;
    if (["cancelled", "error"].includes(finished.reason)) close();
    else askFor(picture);
  }

  /** Both runs as they come, one after the other. */
  function stream(pictures) {
    $(".stage").classList.add("compares");
    const { settings, config } = pictures[0].head;
    const drafts = `Speculative decoding: ${config.speculative === "off" ? "on" : "Off"}`;
    const other = { name: changed() ? "The settings now" : drafts, run: "", commits: [] };
    const [one = sentence(settings.speculative), two] = pictures[1] ? namesOf(pictures) : [];
    const lanes = pictures.map((picture, place) => ({ name: [one, two][place], run: picture.id, commits: commitsOf(picture) }));
    if (!lanes[1]) lanes.push(other);
    lanes.forEach((lane, place) => (lane.mark = MARKS[place]));
    race.live({ prompt: promptOf(pictures[0]), tokens: pictures[0].head.sampling.max_tokens, lanes });
    write($(".faster"), `Computing run ${first ? 2 : 1} of 2. Then both play on one clock.`);
  }

  function show(...pictures) {
    [first, stage.paired] = [null, false];
    if (stage.mode !== "still") stage.enter("still");
    pair = pictures.map(ending).sort((one, other) => other.speed - one.speed);
    $(".faster").replaceChildren();
    $(".stage").classList.add("compares");
    const [names, ms] = [namesOf(pair.map(({ picture }) => picture)), Math.max(...pair.map(({ commits }) => commits.at(-1)[0]))];
    const lanes = pair.map(({ commits }, place) => ({ name: (pair[place].name = names[place]), mark: MARKS[place], commits }));
    race.load({ prompt: promptOf(pictures[0]), ms, lanes });
  }

  const promptOf = ({ head }) => head.prompt.map((one) => promptToken(one).text).join("");
  const commitsOf = ({ frames }) => frames.filter(({ tokens }) => tokens?.length).map(({ t_ms, tokens }) => [t_ms, tokens.map(({ text, origin }) => [text, origin])]);

  /** What a run came to: the numbers of its readouts. */
  function ending(picture) {
    const { frames } = picture;
    const commits = commitsOf(picture);
    const [value, unit] = frames.findLast(({ readouts }) => readouts?.speed).readouts.speed;
    const passes = frames.filter(({ step, round }) => round && step > 0).length;
    return { picture, commits, speed: parseFloat(value.replaceAll(",", "")), shown: `${value} ${unit}`, passes };
  }

  /** What tells two runs apart: the settings that both have and that differ. A seed does only where nothing else does. */
  function namesOf(pictures) {
    const [one, other] = pictures.map(({ head }) => ({ ...head.settings, target: `target: ${head.target}` }));
    const differ = Object.keys(one).filter((name) => other[name] && other[name] !== one[name]);
    const told = differ.length > 1 ? differ.filter((name) => name !== "seed") : differ;
    if (!told.length) return ["First run", "Second run"];
    return [one, other].map((settings) => sentence(told.map((name) => settings[name]).join(", ")));
  }

  const sentence = (words) => words[0].toUpperCase() + words.slice(1);

  function conclude() {
    const [fast, slow] = pair;
    const ratio = fast.speed / slow.speed;
    const clear = ratio > 1 + NOISE;
    const number = make("b", "", clear ? `${ratio.toFixed(1)}×` : "≈ 1×");
    const said = clear
      ? `${fast.name} is faster: ${fast.shown} instead of ${slow.shown}.`
      : `Too close to call from one run each: ${fast.shown} and ${slow.shown}.`;
    const passes = `${fast.passes} target passes instead of ${slow.passes}.`;
    $(".faster").replaceChildren(number, make("span", "", `${said} ${passes} Compare repeats both and says how sure it is.`));
  }

  function close() {
    [first, stage.paired] = [null, false];
    race.stop();
    if (!$(".stage").classList.contains("compares")) return;
    $(".stage").classList.remove("compares");
    stage.charts.forEach((name) => stage.dirty.add(name)); // they were covered
    stage.schedule();
  }
  $(".beside [data-close]").onclick = close;
  document.addEventListener("click", ({ target }) => { // the button may come later than this
    if (!target.closest("#run")) return;
    [first, stage.paired] = [null, false]; // what comes is another run
    asked = settingsNow();
    offer();
  });
  return { ask, show, look, close };
}
