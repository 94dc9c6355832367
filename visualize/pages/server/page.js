// The Server page: reports on the server (visualize/pages/server/watched.py) and on the visitor's own prompt
// (visualize/pages/server/remote_run.py), each from a channel of its own.

import { markStale } from "../../static/announce.js";
import { chartsOf } from "../../static/chart_panel.js";
import { body, fillReadout, make, readout, say, within } from "../../static/dom.js";
import { UNREACHED, openChannel, readRecords } from "../../static/sse.js";

export function mount(element, gradio, { shells, readouts }) {
  const $ = within(element);
  const tell = (selector, text, problem) => say($(selector), text, problem);
  const { charts: drawn, show } = chartsOf(element, shells);

  $(".readouts").append(...readouts.map(readout));
  for (const name of Object.keys(shells)) show({ [name]: empty(name) });

  function empty(name) {
    return { columns: structuredClone(shells[name].start), layout: {} };
  }

  /** Add new points to the lines, and drop those that are out of view for good. */
  function append(points, layout) {
    for (const [name, patches] of Object.entries(points)) {
      const [first] = layout[name]["xaxis.range"];
      for (const [trace, , { x, y }] of patches) {
        const line = drawn[name].columns[trace];
        line.x.push(x);
        line.y.push(y);
        while (line.x[0] < first - 5) (line.x.shift(), line.y.shift());
      }
    }
  }

  function take(news) {
    const { points, layout, charts, readouts, say: text, problem } = JSON.parse(news);
    if (points) append(points, layout);
    for (const [name, axes] of Object.entries(layout ?? {})) show({ [name]: { ...drawn[name], layout: axes } });
    show(charts ?? {});
    for (const [key, row] of Object.entries(readouts ?? {})) fillReadout($(`[data-key=${key}]`), row);
    if (problem) return old(text);
    $(".readouts").classList.remove("old");
    tell(".sheet-say", text);
  }

  function old(why) {
    $(".readouts").classList.add("old");
    tell(".sheet-say", markStale(why, $(".readouts .value").textContent !== "–"), true);
  }

  // -- the visitor's own prompt ----------------------------------------------------------------------

  let answer;
  let began = false; // the first token has come
  function begin(id, prompt) {
    answer?.close();
    began = false;
    $(".answer-text").replaceChildren(make("span", "prompt", prompt));
    tell(".answer-say", "Sent. Waiting for the first token …");
    tell(".rounds-say", "Reported when the answer has ended.");
    show({ rounds: empty("rounds") });
    body.classList.add("running");
    const gone = () => {
      if (body.matches(".running")) tell(".answer-say", "The lab no longer follows this answer. Send it again.", true);
      body.classList.remove("running");
    };
    const lost = () => body.matches(".running") && tell(".answer-say", UNREACHED, true);
    const found = () => body.matches(".running") && tell(".answer-say", "The lab answers again.");
    answer = openChannel(id, { hear: answered, gone, lost, found });
  }

  function answered(news) {
    const { text, say: words, problem, rounds, charts } = JSON.parse(news);
    const box = $(".answer-text");
    if (text) {
      const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
      if (!began) tell(".answer-say", "Receiving the answer …");
      began = true;
      box.append(text); // as text
      if (follows) box.scrollTop = box.scrollHeight;
    }
    if (rounds) tell(".rounds-say", rounds);
    if (charts) show({ rounds: charts.rounds });
    if (!words) return;
    tell(".answer-say", words, problem);
    body.classList.remove("running"); // this was its last message
  }

  // -- what Gradio says: which channels there are ----------------------------------------------------

  let watched;
  let last = "";
  readRecords(gradio, (record) => {
    const said = JSON.stringify(record);
    if (!record || said === last) return;
    last = said;
    const { watch: id, answer, prompt, problem } = record;
    if (id !== watched) {
      watched = id;
      const gone = () => old("The lab no longer follows this server: it was stopped or restarted. Reload this page.");
      openChannel(id, { hear: take, gone, lost: () => old(UNREACHED), rests: true });
    }
    if (problem) tell(".answer-say", problem, true);
    if (answer) begin(answer, prompt);
  });
}
