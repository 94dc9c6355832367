// A question and its answer: a slider, a choice, or a curve to draw. The record (visualize/pages/lessons/lesson_view.py)
// says what is asked, what was answered and, once it is marked, where the right answer is.

import { make, modified, narrow, store, stored, within } from "../../static/dom.js";
import { readRecords } from "../../static/sse.js";

const SVG = "http://www.w3.org/2000/svg";
const [HIGH, LEFT, RIGHT, TOP, BOTTOM] = [260, 56, 24, 14, 40];
const STEADY = 12; // how far a hand wavers sideways as it moves a point up or down
const WIDE = narrow.matches ? 360 : 640; // a wide one, scaled down, would be illegible
function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function nearest(stops, value) {
  const far = stops.map(([stop]) => Math.abs(stop - value));
  return far.indexOf(Math.min(...far));
}

/** A slider between its label, what it says, and its ends. */
export function sliderOf(label, input, first, last) {
  const output = make("output", "", "?");
  const track = make("div", "track-line", input);
  const ends = make("div", "ends", make("span", "", first), make("span", "", last));
  return { slider: make("div", "slider", make("span", "label", label), output, track, ends), output, track };
}

export function mount(element, gradio, setup) {
  const $ = within(element);
  const button = $(".give button");
  let answer = () => null;
  let unsent = null; // under which name this tab keeps an answer that was not given yet

  function read(record) {
    $(".question").hidden = !record;
    if (!record) return;
    if (record.problem) return tell(record.problem, "problem");
    const { kind, question, given, locked, mark } = record;
    $("h2").textContent = setup.title;
    $(".asked").textContent = question;
    const name = `decode-lab-unsent-${question}`;
    unsent = given === null ? name : null;
    if (!unsent) store(name, null, "sessionStorage");
    const begun = JSON.parse(stored(name, "sessionStorage"));
    const [node, get] = { slider, choice, curve }[kind]({ ...record, given: given ?? begun });
    answer = get;
    $(".given").replaceChildren(node);
    $(".question").classList.toggle("locked", locked);
    for (const input of element.querySelectorAll(".given input")) input.disabled = locked;
    button.hidden = locked;
    button.textContent = setup.does;
    $(".onwards").hidden = !record.next;
    if (record.next) Object.assign($(".onwards a"), { textContent: record.next.said, href: record.next.href });
    $(".feedback").textContent = locked ? "" : (mark?.feedback ?? "");
    if (mark && !locked) return tell(mark.said, mark.kind);
    tell(locked || given === null ? "" : setup.kept);
    if (setup.next && given !== null && !locked) document.querySelector(setup.next).scrollIntoView({ block: "center" });
  }

  function tell(text, kind = "") {
    $(".verdict").textContent = text;
    $(".verdict").className = `verdict ${kind}`;
  }

  function slider({ stops, label, given, mark }) {
    const value = given === null ? Math.round((stops.length - 1) / 2) : nearest(stops, given);
    const input = make("input", { type: "range", max: stops.length - 1, value, ariaLabel: label });
    const { slider, output, track } = sliderOf(label, input, stops[0][1], stops.at(-1)[1]);
    let chosen = given !== null; // its initial position is no answer
    const show = () => {
      const said = stops[input.value][1];
      if (chosen) output.textContent = said;
      input.ariaValueText = chosen ? said : `not answered yet; at ${said}`;
    };
    input.oninput = input.onclick = () => {
      chosen = true;
      show();
    };
    input.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault(); // Space would scroll
      input.onclick(); // answers with the current position, as a click does
    };
    show();
    if (mark) track.append(make("i", { className: "right", style: `--at: ${mark.right}` }, "◆"));
    if (mark) slider.querySelector(".ends").firstChild.after(make("span", "found", `◆ ${mark.found}`));
    return [slider, () => (chosen ? stops[input.value][0] : null)];
  }

  function choice({ question, options, stage, given, mark }) {
    const right = (i) => mark?.right === i;
    const inputs = options.map((_, i) =>
      make("input", { type: "radio", name: `answer-${stage}`, checked: given === i }));
    const labels = inputs.map((input, i) => {
      const correct = right(i) ? [make("small", "", "◆ correct")] : [];
      return make("label", right(i) ? "right" : "", input, make("span", "", options[i]), ...correct);
    });
    const box = make("div", { className: "choices", role: "radiogroup", ariaLabel: question }, ...labels);
    const place = () => inputs.findIndex((input) => input.checked);
    return [box, () => (place() < 0 ? null : place())];
  }

  // -- a curve ---------------------------------------------------------------------------------

  /** Points that are set by a stroke across the plot or by arrow keys; once they are marked, the right ones too. */
  function curve({ stops, label, x, given, mark, locked }) {
    const last = stops.length - 1;
    const [first, end] = [x.at[0], x.at.at(-1)];
    const across = (at) => LEFT + ((at - first) / (end - first)) * (WIDE - LEFT - RIGHT);
    const top = Math.max(1, ...(mark?.right ?? [])); // the right answer may be beyond the scale
    const up = (share) => HIGH - BOTTOM - (share / top) * (HIGH - TOP - BOTTOM);
    const places = x.at.map((_, i) => (given === null ? Math.round(last / 3) : nearest(stops, given[i])));
    const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "curve", role: "group", "aria-label": label });
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: up(share), y2: up(share) }));
      svg.append(shape("text", { class: "tick", x: LEFT - 8, y: up(share) + 4, "text-anchor": "end" }, stops[Math.round(share * last)][1]));
    }
    for (const at of x.at) svg.append(shape("text", { class: "tick", x: across(at), y: HIGH - 22, "text-anchor": "middle" }, at));
    svg.append(shape("text", { class: "tick", x: (LEFT + WIDE) / 2, y: HIGH - 5, "text-anchor": "middle" }, x.label));
    if (mark) {
      const points = x.at.map((at, i) => `${across(at)},${up(mark.right[i])}`);
      svg.append(shape("polyline", { class: "right", points: points.join(" ") }));
      x.at.forEach((at, i) => svg.append(shape("path", { class: "right", d: "M0-6L6 0L0 6L-6 0Z", transform: `translate(${across(at)} ${up(mark.right[i])})` })));
    }
    const line = shape("polyline", { class: "own" });
    svg.append(line);
    const handles = x.at.map((at, i) => {
      const slides = {
        tabindex: 0,
        role: "slider",
        "aria-label": `${label}, at ${at}`,
        "aria-valuemin": 0,
        "aria-valuemax": last,
      };
      const handle = shape("circle", { class: "handle", cx: across(at), r: 9, ...(!locked && slides) });
      if (!locked) listen(handle, i);
      svg.append(handle);
      return handle;
    });

    let drawn = given !== null; // its initial shape is no answer

    function move(i, place) {
      drawn = true;
      places[i] = Math.min(Math.max(Math.round(place), 0), last);
      draw();
    }

    /** A stroke, wherever it begins. A point takes the height at which the stroke passes it, or else the stroke's height
        where it comes nearest. */
    function stroke() {
      const closest = x.at.map(() => Infinity);
      const height = (y) => ((HIGH - BOTTOM - y) / (HIGH - TOP - BOTTOM)) * top * last;
      let before = null;
      return ({ clientX, clientY }) => {
        const box = svg.getBoundingClientRect();
        const here = { x: ((clientX - box.left) / box.width) * WIDE, y: ((clientY - box.top) / box.height) * HIGH };
        const away = x.at.map((at) => Math.abs(across(at) - here.x));
        x.at.forEach((at, i) => {
          const share = (across(at) - before?.x) / (here.x - before?.x); // of the way since the last event
          if (share >= 0 && share < 1) {
            closest[i] = 0;
            move(i, height(before.y + share * (here.y - before.y)));
          }
          if (away[i] > Math.min(...away) || away[i] > closest[i] + STEADY) return;
          closest[i] = Math.min(closest[i], away[i]);
          move(i, height(here.y));
        });
        before = here;
      };
    }

    if (!locked) {
      svg.onpointerdown = (event) => {
        svg.setPointerCapture(event.pointerId);
        svg.onpointermove = stroke();
        svg.onpointermove(event);
      };
      svg.onpointerup = svg.onpointercancel = () => (svg.onpointermove = null);
    }

    function listen(handle, i) {
      handle.onkeydown = (event) => {
        const step = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -last, End: last }[event.key];
        if (step === undefined || modified(event)) return;
        event.preventDefault();
        event.stopPropagation();
        move(i, places[i] + step);
      };
    }

    function draw() {
      line.setAttribute("points", x.at.map((at, i) => `${across(at)},${up(places[i] / last)}`).join(" "));
      handles.forEach((handle, i) => {
        handle.setAttribute("cy", up(places[i] / last));
        Object.assign(handle, { ariaValueNow: places[i], ariaValueText: stops[places[i]][1] });
      });
    }

    draw();
    const how = "Draw across the plot, or choose a point with Tab and move it with ↑ and ↓.";
    const right = mark ? make("span", "right", `◆ ${mark.found}`) : make("span", "", how);
    const key = make("p", "drawing-key", make("span", "own", "● you"), right);
    const box = make("div", "drawing", make("span", "label", label), svg, key);
    return [box, () => (drawn ? places.map((place) => stops[place][0]) : null)];
  }

  button.onclick = () => {
    const value = answer();
    if (value === null) return tell(setup.unanswered, "problem");
    gradio.trigger("submit", { answer: value });
  };
  // Gradio loads a page again that has lost its server (answers.js).
  addEventListener("pagehide", () => unsent && answer() !== null && store(unsent, JSON.stringify(answer()), "sessionStorage"));
  readRecords(gradio, read);
}
