// The Room page: the state of everybody's runs (visualize/pages/workshop/feed.py), and for the presenter how to join.

import { BlockGrid } from "../../static/block_grid.js";
import { chartsOf } from "../../static/chart_panel.js";
import { counted, fillReadout, make, readout, say, tone, within, write } from "../../static/dom.js";
import { AGAIN, UNREACHED, openChannel } from "../../static/sse.js";
import { join, key, knownCode, leads, present, storedNumber } from "./join.js";

export function mount(element, _, { shells }) {
  const $ = within(element);
  const { show } = chartsOf(element, shells);
  const READOUTS = {
    running: ["running", "Runs whose next tokens the engine computes, all in the same step."],
    waiting: ["waiting", "Runs that wait until there are blocks for them."],
    speed: ["Decode speed", "Tokens per second, all requests together, over the last second."],
    live: ["blocks in use", "Blocks that requests hold, of all in the pool below."],
    followers: ["following", "People who see what the presenter shows."],
    done: ["runs done", "Since the server was started."],
  };
  for (const [key, [label, about]] of Object.entries(READOUTS)) $(".readouts").append(readout({ key, label, about }));

  const CACHELESS = "The runs here keep no cache: there are no blocks.";
  const squares = new BlockGrid($(".squares"), schedule);
  const lists = Object.fromEntries([...element.querySelectorAll(".chips")].map((list) => [list.dataset.state, list]));
  let now = null;
  let stream;

  const tell = (text, problem) => say($(".sheet-say"), text, problem);

  let scheduled = false;
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      if (now) draw(now);
    });
  }

  function draw({ pool, others, charts, ...numbers }) {
    const { occupancy } = pool ?? {};
    const blocks = occupancy ? occupancy.free + occupancy.cached + occupancy.live : 0;
    const values = { ...numbers, live: occupancy?.live };
    const units = { live: occupancy && `of ${blocks.toLocaleString("en")}` };
    for (const key of Object.keys(READOUTS)) fillReadout($(`[data-key=${key}]`), [values[key]?.toLocaleString("en") ?? "–", units[key]]);
    if (pool) drawPool(pool, blocks);
    write($(".room-others"), others.length ? `Also, in pools of their own: ${others.join("; ")}.` : "");
    show(charts);
  }

  function drawPool({ name, block_size, blocks: table, occupancy, guests }, count) {
    squares.chosen = storedNumber();
    const marks = new Map(count ? table.mark.map((mark, block) => [block, mark]).filter(([, mark]) => mark) : []);
    if (count) squares.draw(table, block_size, marks);
    else if ($(".squares").textContent !== CACHELESS) {
      squares.lay(0);
      $(".squares").replaceChildren(make("p", "hint", CACHELESS));
    }
    $(".room-mine").hidden = !guests.some(({ number }) => number === squares.chosen);
    write($(".room-pool"), count ? `${name} · ${occupancy.live} in use · ${occupancy.cached} cached · ${occupancy.free} free` : name);
    for (const [state, list] of Object.entries(lists)) {
      const theirs = guests.filter((guest) => guest.state === state);
      write($(`[data-chart=${state}] .caption`), String(theirs.length));
      while (list.children.length > theirs.length) list.lastChild.remove();
      theirs.forEach((guest, place) => fill(list.children[place] ?? list.appendChild(chip()), guest));
    }
  }

  function chip() {
    const parts = [make("b"), make("span", "count"), make("i", "done"), make("span", "notes")];
    return make("li", "", make("span", "chip", ...parts));
  }

  function fill(item, { number, tokens, wanted, blocks, preempted }) {
    const [chip] = item.children;
    chip.className = `chip ${tone(number)}${number === squares.chosen ? " chosen" : ""}`;
    write(chip.querySelector("b"), String(number));
    write(chip.querySelector(".count"), `${tokens}/${wanted}`);
    write(chip.querySelector(".notes"), [blocks && counted(blocks, "block"), preempted && `${preempted}× preempted`].filter(Boolean).join(" "));
    chip.style.setProperty("--part", `${(100 * tokens) / wanted}%`);
    chip.title = `Run ${number}: ${tokens} of at most ${counted(wanted, "token")}, ${counted(blocks, "block")}${preempted ? `, preempted ${counted(preempted, "time")}` : ""}`;
  }

  // -- joining -----------------------------------------------------------------------------------------

  async function enter(code) {
    const answer = await join(code);
    if (!answer) return;
    const { room, problem, lost } = answer;
    if (lost) return later(problem);
    $(".strip-join").hidden = Boolean(room);
    if (!room) return tell(problem, true);
    const hint = $(".squares .hint"); // in place of squares, until there are some
    if (hint) write(hint, "Nobody has run anything yet. Every square will be a block of the cache, with the number of the run it belongs to.");
    const hear = (news) => ((now = JSON.parse(news)), schedule());
    const found = () => tell("Everybody's runs, updated ten times a second. No text is shown, and a run has a number instead of a name.");
    found();
    stream?.close();
    stream = openChannel(room, { hear, gone: begin, lost: () => tell(UNREACHED, true), found, rests: true }); // a restarted server may have another code
  }

  function later(problem) {
    tell(problem, true);
    setTimeout(begin, AGAIN);
  }

  async function begin() {
    const { code, link, picture, problem, lost } = key ? await present() : {};
    $(".room-join").hidden = !code;
    if (lost) return later(problem);
    if (code) {
      write($(".room-code"), code);
      write($(".room-link"), link ? `${new URL(link).host}${new URL(link).pathname}`.replace(/\/$/, "") : ""); // why there is none, the presenter's own page says
      const image = $(".room-join img");
      image.hidden = !picture;
      if (picture) image.src = picture;
      return enter(code);
    }
    const known = knownCode();
    if (known && !(problem && leads)) return enter(known);
    $(".strip-join").hidden = false;
    tell(problem ?? "Join with the code on the presenter's screen.", Boolean(problem));
  }

  $(".strip-join").onsubmit = (event) => {
    event.preventDefault();
    enter(event.target.elements.code.value);
  };
  for (const name of Object.keys(shells)) show({ [name]: { columns: [{}, {}], layout: {} } });
  begin();
}
