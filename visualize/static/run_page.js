// What the Lab's stage has of its own: the text, the chart in the second place, and a guess's verdict in place of two.
// Its last lines start the stage.

function drawOwn(picture) {
  $(".parts").classList.toggle("alone", picture.head.config.speculative === "off"); // nobody drafts
  drawAgainst(picture.head.config.speculative !== "off");
  $(".use").hidden = picture.own || !server || inLesson(); // one's own settings are on the controls
  drawPlace(picture.head.config.kv_cache);
  const follows = held || atEnd();
  drawText(picture);
  if (follows) toEnd();
}

/** Show the cache's blocks or, without a cache, what is computed again: they share one place. */
function drawPlace(keeps) {
  if (absent() === (keeps ? "recomputed" : "blocks")) return;
  $(".stage").classList.toggle("cacheless", !keeps);
  if ($(".choose :is([data-for=blocks], [data-for=recomputed])[aria-pressed=true]")) choose(keeps ? "blocks" : "recomputed");
}

/** The one of the two charts that is not shown. */
function absent() {
  return $(".stage").classList.contains("cacheless") ? "blocks" : "recomputed";
}

/** The link to a comparison of the shown run's settings. */
function drawAgainst(guesses) {
  const drawn = run.against && !/[?&]seed=/.test(run.against); // a seed, where none was given
  const seeded = drawn ? `${run.against}&seed=${picture.head.sampling.seed}` : run.against;
  offer(seeded, `Compare with ${guesses ? "the same settings without guesses" : "the cache alone"}`);
}

/** Before there is a run: how to get one. An exported page comes with its own. */
function invite() {
  const hint = make("p", "hint");
  hint.append(make("span", "to-run", "Press Run: the text appears"), make("span", "to-follow", "What the presenter shows appears"));
  hint.append(" here token by token, each marked by how it came to be.");
  story.append(hint);
  $(".say").textContent = "Ready.";
}

function moved() {
  if (opened?.seq > picture.at) closeVerdict(bar); // it has not happened yet; the player's keys go on
  if (mode === "led") openAsLed();
  if (wantedGuess && (mode === "still" || (picture.at === picture.last && !run.running))) openWanted();
}

function relook() {
  drawParts();
  drawVerdict();
}

function drawParts() {
  const colours = setup.parts[look()];
  $(".parts").replaceChildren(
    ...Object.entries(colours).map(([part, colour]) => {
      const item = make("span", `part ${part === "speed" ? "line" : part}`, part === "speed" ? "tok/s" : part);
      item.style.setProperty("--part", colour);
      return item;
    }),
  );
}

if (server) invite();
drawParts();
$(".use").onclick = () => trigger("submit", { run: picture.id });
$(".stage").classList.toggle("cacheless", window.decodeLab.asked.get("chart") === "recomputed");
choose(charts[0]);
plotOf("rounds").addEventListener("drawn", ({ target }) => {
  target.on("plotly_click", ({ points: [square] }) => veiled(target, square) || openSquare(square));
}, { once: true });
if (charts.includes(window.decodeLab.asked.get("chart"))) choose(window.decodeLab.asked.get("chart"));
watch("value", () => (leave(), read(props.value ?? "")));
read(props.value ?? "");
beLed();
