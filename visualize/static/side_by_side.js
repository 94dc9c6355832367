// Two runs of the Lab on one clock: the run that is shown and the same without speculation (or with, if it had none), or
// any two of the last ten.

import { make, within } from "./dom.js";
import { Race } from "./race.js";
import { promptToken } from "./token_text.js";

const NOISE = 0.1; // visualize/reduce/metric_cards.py

/** Add the panel to a stage. Returns {ask, show, look}: ask the server for the other run, show two pictures, and look
    whether the run that was asked for is there. */
export function addSideBySide(stage, trigger) {
  const $ = within(stage.element);
  const panel = $(".beside");
  const race = new Race(panel, stage.setup.vocabulary, (share) => share === null && conclude());
  let first = null; // the picture for which another run was asked
  let pair = [];

  function ask() {
    first = stage.picture;
    trigger("select", { run: first.id });
  }

  function look(picture) {
    if (!first || picture === first || !picture.frames.at(-1).finished) return;
    show(first, picture);
    first = null;
  }

  function show(...pictures) {
    if (stage.mode !== "still") stage.enter("still");
    pair = pictures.map(ending).sort((one, other) => other.speed - one.speed);
    $(".faster").replaceChildren();
    $(".stage").classList.add("compares");
    const [names, ms] = [namesOf(pair), Math.max(...pair.map(({ commits }) => commits.at(-1)[0]))];
    const lanes = pair.map(({ commits }, place) => ({ name: (pair[place].name = names[place]), mark: "●■"[place], commits }));
    race.load({ prompt: pictures[0].head.prompt.map((one) => promptToken(one).text).join(""), ms, lanes });
  }

  /** What a run came to: the numbers of its readouts. */
  function ending({ frames, head }) {
    const commits = frames.filter(({ tokens }) => tokens?.length).map(({ t_ms, tokens }) => [t_ms, tokens.map(({ text, origin }) => [text, origin])]);
    const [value, unit] = frames.findLast(({ readouts }) => readouts?.speed).readouts.speed;
    const passes = frames.filter(({ step, round }) => round && step > 0).length;
    return { commits, speed: parseFloat(value), shown: `${value} ${unit}`, passes, settings: head.short.split(", ") };
  }

  /** What tells two runs apart, of their settings. */
  function namesOf([one, other]) {
    const only = (some, rest) => some.settings.filter((words) => !rest.settings.includes(words)).join(", ");
    const [first, second] = [only(one, other), only(other, one)];
    return [first || (second ? `without ${second}` : "first run"), second || (first ? `without ${first}` : "second run")];
  }

  function conclude() {
    const [fast, slow] = pair;
    const ratio = fast.speed / slow.speed;
    const clear = ratio > 1 + NOISE;
    const number = make("b", "", clear ? `${ratio.toFixed(1)}×` : "≈ 1×");
    const said = clear
      ? `Faster: ${fast.name}, ${fast.shown} to ${slow.shown}`
      : `Too close to call from single runs: ${fast.shown} and ${slow.shown}`;
    const passes = `Target passes: ${fast.passes} to ${slow.passes}. One run each; Compare repeats them.`;
    $(".faster").replaceChildren(number, make("span", "", `${said}. ${passes}`));
  }

  function close() {
    race.stop();
    $(".stage").classList.remove("compares");
  }
  $(".beside [data-close]").onclick = close;
  document.querySelector("#run")?.addEventListener("click", () => (first = null)); // what comes is another run
  return { ask, show, look, close };
}
