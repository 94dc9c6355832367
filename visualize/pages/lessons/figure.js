// The figure in a lesson's introduction: pictures of recorded runs (visualize/pages/lessons/figure.py), one at a time. Rounds,
// blocks and verdicts are drawn by the modules that draw them in the Lab and on the Pool page.

import { BlockGrid } from "../../static/block_grid.js";
import { chartsOf, look } from "../../static/chart_panel.js";
import { make, part, tone, within, write } from "../../static/dom.js";
import { offerPanel } from "../../static/pictures.js";
import { RoundFilm } from "../../static/round_film.js";
import { phasesOf, reached } from "../../static/round_phases.js";
import { sentenceOf } from "../../static/round_words.js";
import { readRecords } from "../../static/sse.js";
import { RunState } from "../../static/stage.js";
import { costs, heights, ruler } from "./figure_costs.js";

export function mount(element, gradio, setup) {
  const $ = within(element);
  const slider = $("input");
  const [back, next] = element.querySelectorAll("button");
  const charts = chartsOf(element, setup.shells);
  offerPanel($(".introduced"));
  /** By kind, a function of the record: it returns how many pictures there are, and what draws one of them and gives its
      sentence. */
  const drawings = { cache, table, prefixes, batch, round, verdict, costs, ruler, heights };
  let drawn;

  function read(record) {
    $(".introduced").hidden = !record?.draws;
    if (!record?.draws) return;
    write($(".see"), record.say);
    $(".drawing-of").replaceChildren();
    $(".drawing-of").className = `drawing-of ${record.draws}`;
    $(".drawing-of").ariaHidden = ["cache", "batch", "ruler", "heights"].includes(record.draws) ? "true" : null; // their sentences say it all
    for (const name of ["round", "verdict"]) $(`.drawing-of-${name}`).hidden = record.draws !== name;
    drawn = drawings[record.draws](record, add, key);
    slider.max = drawn.count - 1;
    go(0);
  }

  function go(place) {
    slider.value = place;
    const at = Number(slider.value);
    write($(".tells"), drawn.draw(at));
    write($(".reached"), `${at + 1} of ${drawn.count}`);
    slider.setAttribute("aria-valuetext", $(".reached").textContent);
    back.ariaDisabled = at === 0 ? "true" : null;
    next.ariaDisabled = at === drawn.count - 1 ? "true" : null;
  }

  slider.oninput = () => go(slider.value);
  back.onclick = () => go(Number(slider.value) - 1);
  next.onclick = () => go(Number(slider.value) + 1);

  const add = (...nodes) => $(".drawing-of").append(...nodes);
  const key = (...entries) => make("p", "key", ...entries.map(([kind, text]) => make("span", "", make("i", kind), ` ${text}`)));

  /** A column per token, in a row each for keys and values. */
  function cache({ words, lanes, pictures }) {
    const cells = (row, share) => {
      const found = words.map((word, i) => make("i", { title: `Token ${i + 1}: ${word}` }));
      const line = make("div", "columns", ...found);
      line.style.setProperty("--share", share);
      return [make("span", "row-name", row), line, found];
    };
    const drawnLanes = lanes.map(({ name, share, rows }) => {
      const made = rows.map((row) => cells(row, share));
      const caption = make("span", "caption");
      const head = make("p", "lane-name", make("b", "", name), " ", caption);
      add(make("div", "lane-of", ...(lanes.length > 1 ? [head] : []), ...made.flatMap(([named, line]) => [named, line])));
      return { caption, cells: made.map(([, , found]) => found) };
    });
    const texts = words.map((word) => make("span", { translate: false }, word.trim() || "␣"));
    add(make("div", "lane-of", make("span"), make("div", "columns words", ...texts)));
    const again = pictures.some(({ lanes: of }) => of.some(({ from, known }) => from < known));
    add(key(["computed", "computed in this pass"], ...(again ? [["again", "computed again in this pass"]] : []), ["read", lanes.length > 1 ? "kept from earlier passes" : "computed before"]));
    function draw(at) {
      pictures[at].lanes.forEach(({ from, to, known, caption }, lane) => {
        write(drawnLanes[lane].caption, caption);
        for (const row of drawnLanes[lane].cells) {
          row.forEach((cell, i) => (cell.className = i >= to ? "" : i < from ? "read" : i < known ? "again" : "computed"));
        }
      });
      texts.forEach((text, i) => text.classList.toggle("to-come", i > pictures[at].lanes[0].to));
      return pictures[at].say;
    }
    return { count: pictures.length, draw };
  }

  /** The pool's blocks, and every request's table of them. */
  function table({ frames }) {
    const squares = make("div", "squares");
    const tables = make("div", "tables");
    add(make("div", "map", make("h3", "", "Pool"), squares), make("h3", "", "Block tables"), tables);
    const grid = new BlockGrid(squares, () => grid.show(picture));
    const picture = new RunState();
    picture.frames = frames;
    const names = [...new Set(frames.flatMap(({ tables: of }) => Object.keys(of)))];
    const rows = names.map((name) => {
      const list = make("span", "row-blocks");
      tables.append(make("b", tone(Number(name)), `Request ${name}`), list);
      return list;
    });
    function draw(at) {
      picture.go(at);
      grid.show(picture);
      names.forEach((name, i) => {
        const blocks = frames[at].tables[name] ?? [];
        rows[i].replaceChildren(...(blocks.length ? [] : [make("small", "", "no blocks")]), ...blocks.map((block) => square([Number(name)], block, picture.columns.pool[0].fill[block] / picture.head.config.block_size)));
      });
      return frames[at].say;
    }
    return { count: frames.length, draw };
  }

  /** A block, in the looks of static/block_grid.js. */
  function square(owners, text, share = 1) {
    const kind = owners.length > 1 ? "live shared" : owners.length ? `live own ${tone(owners[0])}` : "cached";
    const node = make("i", `square ${kind}`, text);
    node.style.setProperty("--part", `${100 * share}%`);
    return node;
  }

  function prefixes({ pictures }) {
    const branch = (found) => ({ blocks, owners, text, below }) => {
      const users = owners.length ? `request${owners.length > 1 ? "s" : ""} ${owners.join(", ")}` : "cached: no request uses it";
      const squares = blocks.map((block) => square(owners, block));
      blocks.forEach((block, i) => found.includes(block) && (squares[i].dataset.mark = "found"));
      const words = make("span", { className: "edge-text", title: text, translate: false }, text);
      const node = make("li", "", make("div", "edge", make("span", "row-blocks", ...squares), make("b", "", users), words));
      if (below.length) node.append(make("ul", "", ...below.map(branch(found))));
      return node;
    };
    const root = make("ul", "tree");
    add(root, make("p", "key", "= found, and not computed again"));
    function draw(at) {
      root.replaceChildren(...pictures[at].tree.map(branch(pictures[at].found)));
      return pictures[at].say;
    }
    return { count: pictures.length, draw };
  }

  function batch({ rows, pictures }) {
    const lines = rows.map(({ name, cells }) => {
      const found = cells.map((kind, i) => make("i", { title: kind ? `Step ${i + 1}: ${kind}` : "" }));
      const line = make("div", `columns ${tone(Number(name))}`, ...found);
      add(make("div", "lane-of", make("span", "row-name", name), line));
      return { cells, found };
    });
    add(key(["prefill", "reads its prompt"], ["decode", "one token"], ["waiting", "waits"]));
    function draw(at) {
      for (const { cells, found } of lines) found.forEach((cell, i) => (cell.className = `${i <= at ? cells[i] : "to-come"}${i === at ? " at" : ""}`));
      return pictures[at].say;
    }
    return { count: pictures.length, draw };
  }

  function round({ frames, first }) {
    const film = new RoundFilm($(".film"), setup.states, () => {});
    const picture = new RunState();
    picture.frames = frames;
    const places = frames.flatMap((frame, seq) => (seq < first ? [] : phasesOf(frame).map((_, place) => ({ seq, frame, place }))));
    function draw(at) {
      const { seq, frame, place } = places[at];
      const whole = place === phasesOf(frame).length - 1;
      picture.go(whole ? seq : seq - 1);
      film.draw(picture, whole ? null : { frame, place }, false);
      return sentenceOf(frame, reached(frame, place));
    }
    return { count: places.length, draw };
  }

  function verdict({ pictures }) {
    const { data } = setup.shells.verdict[look()];
    const named = data.filter((_, i) => pictures.some(({ columns }) => columns[i].y.length));
    $(".drawing-of-verdict .key").replaceChildren(...named.map(({ name, type, marker, line }) => part(name, (type === "bar" ? marker : line).color, type === "bar" ? "" : "line")));
    function draw(at) {
      const { title, say, columns, layout } = pictures[at];
      write($(".drawing-of-verdict h3"), title);
      charts.show({ verdict: { columns, layout } });
      return say;
    }
    return { count: pictures.length, draw };
  }

  readRecords(gradio, read);
}
