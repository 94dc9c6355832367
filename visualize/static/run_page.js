// The stage of a run, as the Lab, the lessons and exported pages have it: the text, the chart in the second place, and a
// draft token's verification in place of two.

import { initialQuery } from "./address.js";
import { look } from "./chart_panel.js";
import { make, part, within } from "./dom.js";
import { offerFilm } from "./film_file.js";
import { RoundFilm } from "./round_film.js";
import { addRunHistory } from "./run_history.js";
import { addSideBySide } from "./side_by_side.js";
import { createStage } from "./stage.js";
import { addText } from "./token_text.js";
import { addVerification } from "./verification.js";

const AT_REST = 128; // blocks drawn before the first run has said how many there are

export function mount(element, gradio, setup) {
  const $ = within(element);
  const stage = createStage(element, gradio, setup);
  const { charts } = stage;
  const paired = () => $(".stage").classList.contains("compares");
  const covered = (name) => (stage.opened !== null && name !== "rounds") || name === absent() || paired();
  const slowed = Boolean(stage.server) && !stage.inLesson();
  Object.assign(stage, { drawOwn, moved, covered, relook, slowed });
  addText(stage);
  const film = new RoundFilm($(".film"), setup.vocabulary.states, (token) => light($(".flow"), token, stage.shown[token]?.mark));
  offerFilm(stage, $(".film"), setup.vocabulary.states);
  addVerification(stage);
  const two = addSideBySide(stage, gradio.trigger);
  const note = addRunHistory(stage, two.show);
  const offerTwo = () => ($(".twice").hidden = !stage.server || Boolean(stage.led) || stage.inLesson() || stage.run.running);
  $(".twice").onclick = two.ask;
  offerTwo();

  stage.story.addEventListener("pointerover", ({ target }) => {
    const token = stage.markOf(target)?.dataset.index ?? null;
    light($(".kv-lane"), token, $(`.kv-lane [data-position="${token}"]`));
  });

  addEventListener("resize", () => stage.held || stage.toEnd());

  const starts = $(".opening");
  starts.querySelector("[data-start=round]").onclick = () => stage.go(stage.picture.frames.findIndex((frame) => frame.round?.drafts.length), 0);
  if (stage.server) invite();
  drawParts();
  $(".use").onclick = () => gradio.trigger("submit", { run: stage.picture.id });
  $(".stage").classList.toggle("cacheless", initialQuery.get("chart") === "recomputed");
  stage.squares.alone = true;
  stage.squares.lay(AT_REST);
  stage.choose(charts[0]);
  stage.plotOf("rounds").addEventListener("drawn", ({ target }) => {
    target.on("plotly_click", ({ points: [square] }) => stage.veiled(target, square) || stage.openSquare(square));
  }, { once: true });
  if (charts.includes(initialQuery.get("chart"))) stage.choose(initialQuery.get("chart"));
  stage.show();
  stage.beLed();

  function drawOwn(picture) {
    $(".stage").classList.toggle("undrafted", picture.head.config.speculative === "off");
    drawAgainst(picture.head.config.speculative !== "off");
    if (stage.opening) $(".opening [data-start=compare]").href = `${stage.run.against}&run=1`;
    if (stage.opening) $(".opening [data-start=lesson]").href = "lessons?lesson=1";
    $(".use").hidden = stage.opening || picture.own || !stage.server || stage.inLesson(); // one's own settings are on the controls
    drawPlace(picture.head.config.kv_cache);
    const follows = stage.held || stage.atEnd();
    film.draw(picture, stage.part, stage.mode === "following" || stage.fleeting());
    stage.drawText(picture);
    note(picture);
    two.look(picture);
    offerTwo();
    if (follows) stage.toEnd();
  }

  /** Show the cache's blocks or, without a cache, what is computed again: they share one place. */
  function drawPlace(keeps) {
    if (absent() === (keeps ? "recomputed" : "blocks")) return;
    $(".stage").classList.toggle("cacheless", !keeps);
    if ($(".choose :is([data-for=blocks], [data-for=recomputed])[aria-pressed=true]")) stage.choose(keeps ? "blocks" : "recomputed");
  }

  /** The one of the two charts that is not shown. */
  function absent() {
    return $(".stage").classList.contains("cacheless") ? "blocks" : "recomputed";
  }

  /** The link to a comparison of the shown run's settings. */
  function drawAgainst(drafts) {
    const drawn = stage.run.against && !/[?&]seed=/.test(stage.run.against); // a seed, where none was given
    const seeded = drawn ? `${stage.run.against}&seed=${stage.picture.head.sampling.seed}` : stage.run.against;
    const took = Math.max(0.1, stage.picture.frames.at(-1).t_ms / 1000).toPrecision(1);
    stage.offer(seeded, `Compare with ${drafts ? "the same settings without speculation" : "the cache alone"}: six runs of about ${took} s, once you press Compare there`);
  }

  /** Before there is a run: how to get one. An exported page comes with its own. */
  function invite() {
    const [mine, led] = ["Press Run.", "What the presenter shows appears here."];
    const colours = " Colours show which draft tokens the target accepted.";
    stage.story.append(make("p", "hint", make("span", "to-run", mine), make("span", "to-follow", led), colours));
    $(".say").textContent = "Ready.";
  }

  function moved() {
    if (!stage.paired && (stage.run.running || stage.mode !== "still")) two.close();
    if (stage.opened?.seq > stage.picture.at) stage.closeVerdict(stage.bar); // it has not happened yet; the player's keys go on
    if (stage.mode === "led") stage.openAsLed();
    if (stage.wantedGuess && (stage.mode === "still" || (stage.picture.at === stage.picture.last && !stage.run.running))) stage.openWanted();
  }

  /** Light up what stands for a token: its place in the text, or its slot. */
  function light(within, token, node) {
    within.querySelector(".pointed")?.classList.remove("pointed");
    if (token !== null) node?.classList.add("pointed");
  }

  function relook() {
    drawParts();
    stage.drawVerdict();
  }

  function drawParts() {
    const key = ([name, colour]) => (name === "speed" ? part("tok/s", colour, "line") : part(name, colour, name));
    $(".parts").replaceChildren(...Object.entries(setup.parts[look()]).map(key));
  }
}
