// The Pool page: the stage of many sequences, with their blocks as squares, the queue and the batch as chips, and what a
// chosen sequence writes.

import { button, counted, make, tone, within } from "../../static/dom.js";
import { createStage } from "../../static/stage.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const stage = createStage(element, gradio, setup);
  Object.assign(stage, { drawOwn, moved });

  const { squares } = stage;
  const lists = Object.fromEntries([...element.querySelectorAll(".chips")].map((list) => [list.dataset.state, list]));
  const chips = new Map(); // by the sequence's number
  let chosen = null; // a sequence: pointed at, or pinned
  let pinned = null; // of the run that is shown
  let shownRun = "";

  function drawOwn({ columns }) {
    drawChips(rows(columns.sequences[0]));
    drawWrote();
    stage.offer(stage.run.against, "Use these settings in the Lab: the first request alone");
  }

  function moved() {
    if (stage.picture.id === shownRun) return;
    shownRun = stage.picture.id;
    pinned = null;
    point(null);
  }

  /** A table's columns as rows. */
  function rows(columns) {
    const names = Object.keys(columns);
    return (columns.number ?? []).map((_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  }

  // -- the queue and the batch ------------------------------------------------------------------------

  function drawChips(sequences) {
    for (const number of [...chips.keys()].slice(sequences.length)) {
      chips.get(number).item.remove();
      chips.delete(number);
    }
    const focused = document.activeElement?.closest(".chip");
    const places = { waiting: [], running: [], done: [] };
    for (const row of sequences) {
      if (!chips.has(row.number)) chips.set(row.number, chip(row));
      fill(chips.get(row.number), row);
      (places[row.state] ?? places.done).push(chips.get(row.number).item);
    }
    for (const [place, items] of Object.entries(places)) {
      const list = lists[place];
      if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) list.replaceChildren(...items);
    }
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true }); // it was moved
  }

  function chip({ number }) {
    const parts = { count: make("span", "count"), done: make("i", "done"), notes: make("span", "notes") };
    const chip = button({
      className: `chip ${tone(number)}${number === chosen ? " chosen" : ""}`,
      ariaPressed: number === pinned,
      dataset: { sequence: number },
    }, make("b", "", number), ...Object.values(parts));
    return { item: make("li", "", chip), button: chip, ...parts, told: "" };
  }

  function fill(chip, row) {
    const told = JSON.stringify(row);
    if (told === chip.told) return;
    chip.told = told;
    const { state, tokens, wanted, blocks, found, preempted } = row;
    const notes = [blocks && counted(blocks, "block"), found && `${found} found`, preempted && `${preempted}× preempted`].filter(Boolean);
    chip.count.textContent = `${tokens}/${wanted}`;
    chip.notes.textContent = notes.join(" · ");
    chip.button.style.setProperty("--part", `${(100 * tokens) / wanted}%`);
    chip.button.dataset.state = state;
    chip.button.title = [
      `Request ${row.number}: ${state}`,
      `${tokens} of at most ${counted(wanted, "token")}`,
      counted(blocks, "block"),
      found && `${counted(found, "token")} found in the prefix cache`,
      preempted && `preempted ${counted(preempted, "time")}`,
    ].filter(Boolean).join(", ");
  }

  // -- one sequence -----------------------------------------------------------------------------------

  /** Mark the blocks of a sequence and show what it writes. */
  function point(number) {
    if (chosen === number) return;
    chosen = squares.chosen = number;
    $(".stage").classList.toggle("choosing", number !== null);
    for (const [of, { button }] of chips) {
      button.classList.toggle("chosen", of === number);
      button.ariaPressed = of === pinned;
    }
    stage.schedule();
  }

  function drawWrote() {
    const row = chosen === null ? null : rows(stage.picture.columns.sequences[0]).find(({ number }) => number === chosen);
    if (!row) return $(".wrote").replaceChildren(make("p", "hint", HINT));
    const text = stage.picture.tokens.filter(({ owner }) => owner === chosen).map(({ text }) => text).join("");
    const parts = [make("b", "", `${chosen} `), make("span", "prompt", row.prompt), text];
    $(".wrote").replaceChildren(make("p", { dir: "auto", translate: false }, ...parts));
    $(".wrote").scrollTop = $(".wrote").scrollHeight;
  }
  const HINT = $(".wrote .hint").textContent;

  /** The sequences that something on the stage belongs to. */
  function ownersOf(target) {
    const chip = target.closest("[data-sequence]");
    if (chip) return [Number(chip.dataset.sequence)];
    const square = target.closest("[data-block]");
    return square && stage.picture.frame ? stage.picture.columns.pool[0].owners[square.dataset.block] : [];
  }

  for (const part of [$(".squares"), $(".queues")]) {
    part.addEventListener("pointerover", ({ target, pointerType }) => {
      if (pointerType === "touch") return;
      point(ownersOf(target)[0] ?? pinned);
    });
    part.addEventListener("pointerleave", () => point(pinned));
    part.addEventListener("focusin", ({ target }) => point(ownersOf(target)[0] ?? pinned));
    part.addEventListener("focusout", () => point(pinned));
    part.addEventListener("click", ({ target }) => {
      const [owner] = ownersOf(target);
      pinned = owner === undefined || owner === pinned ? null : owner;
      chosen = undefined;
      point(pinned);
    });
  }

  // What a person chose last: by the time Gradio asks for the answer, that to an earlier choice may have been put in its place.
  document.addEventListener("input", ({ target }) => target.closest("#preset") && (window.decodeLab.scenario = target.value), true);

  stage.choose(stage.charts[0]);
  stage.show();
}
