// What the Lab's stage has of its own: the text, and a guess's verdict in place of two charts. Last, it begins.

function drawOwn(picture) {
  $(".parts").classList.toggle("alone", picture.head.config.speculative === "off"); // nobody drafts
  drawAgainst(picture.head.config.speculative !== "off");
  const follows = held || atEnd();
  drawText(picture);
  if (follows) toEnd();
}

/** The way to a comparison of the settings of the run that is shown, once it is over. */
function drawAgainst(guesses) {
  const link = $(".against");
  link.hidden = !run.against || run.running || picture.id !== JSON.parse(run.id).run;
  if (link.hidden || link.getAttribute("href") === run.against) return; // nothing is written again while it is played
  link.href = run.against;
  link.title = `Run in turns with ${guesses ? "the same, but no guesses" : "the cache alone"}`;
}

function moved() {
  if (opened?.seq > picture.at) closeVerdict(); // it has not happened yet
  if (mode === "led") openAsLed();
  if (wantedGuess && (mode === "still" || picture.frame?.finished)) openWanted();
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

drawParts();
choose(charts[0]);
plotOf("rounds").on("plotly_click", ({ points: [square] }) => veiled(plotOf("rounds"), square) || openSquare(square));
if (charts.includes(window.decodeLab.asked.get("chart"))) choose(window.decodeLab.asked.get("chart"));
watch("value", () => (leave(), read(props.value ?? "")));
read(props.value ?? "");
beLed();
