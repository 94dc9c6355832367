// The KV cache's blocks as squares, for the Lab, the Pool and the Room: the owner by colour and number, how full each is,
// and what just happened to it. Rows are those of visualize/reduce/block_map.py. Only squares that differ from what is
// drawn are touched.

import { calm, counted, labelAsImage, make, tone } from "./dom.js";
import { offerPanel } from "./pictures.js";

/** Whether a square with sides of so many pixels has room for "×" before the number of sequences that share it. */
const roomy = (side, number) => side >= 14 + 6 * String(number).length;
const LEAST = 4; // pixels: of a thousand blocks all are shown
const TINY = 9; // pixels: below that there is no room between edges
const FLASH = 900; // milliseconds for which a block shows what happened to it, even if frames come faster
const MARKS = {
  found: "found, not computed again",
  copied: "begun as a copy",
  preempted: "its request was preempted",
  evicted: "its tokens can no longer be found",
  slid: "its tokens slid out of the window",
};

/** ``redraw`` is called when the squares have another size. */
export class BlockGrid {
  constructor(root, redraw) {
    this.root = root;
    this.redraw = redraw;
    this.squares = [];
    this.drawn = [];
    this.chosen = null; // a request's number
    this.alone = false; // whether the blocks are of one run, whose number nobody needs
    labelAsImage(root);
    const panel = root.closest(".panel.map");
    if (panel) offerPanel(panel);
    new ResizeObserver(() => this.fit()).observe(root);
    root.addEventListener("pointerover", ({ target }) => {
      const square = target.closest("[data-block]");
      if (square && this.pool) square.title = `Block ${square.dataset.block}: ${this.#words(square.dataset.block)}`;
    });
  }

  /** As many squares as there are blocks, as large as there is room for. */
  lay(count) {
    const square = (block) => make("i", { className: "square free", dataset: { block } });
    this.squares = Array.from({ length: count }, (_, block) => square(block));
    this.drawn = this.squares.map(() => "");
    this.root.replaceChildren(...this.squares);
    this.root.ariaDescription = null;
    this.fit();
  }

  fit() {
    const { width: wide, height: high } = this.root.getBoundingClientRect(); // unrounded: half a pixel less is a column less
    const count = this.squares.length;
    if (!count || !wide || !high) return;
    let side = Math.floor(Math.min(96, Math.max(56, high / 6))); // to be seen from the back of a room
    while (side > LEAST && Math.ceil(count / Math.floor(wide / side)) * side > high) side -= 1;
    this.root.style.setProperty("--side", `${side}px`);
    this.root.classList.toggle("small", !roomy(side, 1));
    this.root.classList.toggle("tiny", side < TINY);
    if (this.side === side) return;
    this.side = side;
    this.drawn.fill(""); // all are drawn again
    this.redraw();
  }

  /** Show the blocks of a run's picture. What happened since it was last shown flashes, but not when going back. */
  show(picture) {
    const news = picture.frames.slice(picture === this.picture ? this.at + 1 : 0, picture.at + 1);
    const marked = news.flatMap(({ charts }) => charts?.pool ?? []).filter(([, , { mark }]) => mark);
    [this.picture, this.at] = [picture, picture.at];
    const marks = new Map(marked.map(([, block, { mark }]) => [block, mark]));
    this.draw(picture.columns.pool[0], picture.head.config.block_size, marks);
  }

  /** ``pool``: the table's columns. ``marks``: what happened to blocks since the last call, by block. */
  draw(pool, size, marks) {
    const columns = Object.values(pool);
    const count = pool.state?.length ?? 0;
    [this.pool, this.size] = [pool, size];
    if (count !== this.squares.length) this.lay(count);
    this.squares.forEach((square, block) => {
      const key = `${columns.map((values) => values[block])} ${pool.owners[block].includes(this.chosen)}`;
      if (key !== this.drawn[block]) {
        this.drawn[block] = key;
        this.#fill(square, this.#row(block));
      }
      if (marks.has(block) && !calm.matches) flash(square, marks.get(block));
    });
    this.root.ariaDescription = holdings(pool, this.alone);
  }

  #row(block) {
    return Object.fromEntries(Object.entries(this.pool).map(([name, values]) => [name, values[block]]));
  }

  #fill(square, { state, owners, fill, vain, stored, mark, window: slides }) {
    const shared = owners.length > 1;
    const others = state === "live" && !owners.length;
    const own = this.alone ? "mine" : `own ${tone(owners[0])}`;
    const whose = others ? "others" : shared ? "shared" : owners.length ? own : fill ? "freed" : "";
    const more = `${stored ? " stored" : ""}${slides ? " windowed" : ""}${owners.includes(this.chosen) ? " chosen" : ""}`;
    square.className = `square ${state} ${whose}${more}`;
    const times = roomy(this.side, owners.length) ? "×" : "";
    square.textContent = this.alone ? "" : shared ? `${times}${owners.length}` : (owners[0] ?? "");
    square.style = `--part: ${this.#share(others ? this.size : fill)}; --vain: ${this.#share(vain ? fill + vain : 0)}`;
    square.dataset.mark = mark;
  }

  #share(slots) {
    return `${Math.round((100 * slots) / this.size)}%`;
  }

  /** What a square shows, in words. */
  #words(block) {
    const { state, owners, fill, vain, stored, mark, index, references, window: slides } = this.#row(block);
    const inVain = vain ? `${counted(vain, "slot")} written for rejected draft tokens` : "";
    if (state === "cached") return "cached: can be allocated, but its tokens can still be found";
    if (state === "free" && mark === "slid") return `free: ${MARKS.slid}`;
    if (state === "free") return inVain || fill ? `free: ${inVain || `it held ${counted(fill, "token")}`}` : "free";
    if (!owners.length) return "another request's";
    const mine = this.alone ? `entry ${index} of this request's block table` : `request ${owners[0]}`;
    return [
      owners.length > 1 ? `shared by requests ${owners.join(", ")}` : mine,
      slides && `of layers in which a token sees ${counted(slides, "position")}`,
      `${fill} of ${counted(this.size, "slot")} filled`,
      inVain && `${inVain}: the next round overwrites them`,
      MARKS[mark],
      references > 1 && `shared by ${references} requests when it was found`,
      stored && "in the prefix-cache index",
    ].filter(Boolean).join(", ");
  }
}

/** Who holds the blocks, for screen readers. ``owners``: for each block, the requests that hold it. */
function holdings({ state = [], owners = [] }, alone) {
  const live = state.filter((one) => one === "live").length;
  const held = `${live} of ${counted(state.length, "block")} held`;
  if (alone) return `${held}, ${owners.filter(({ length }) => length).length} by this request`;
  const shared = owners.filter(({ length }) => length > 1).length;
  const all = new Set(owners.flat()).size;
  return `${held} by ${counted(all, "request")}${shared ? `, ${shared} of them by several` : ""}`;
}

function flash(square, mark) {
  const colour = getComputedStyle(square).getPropertyValue(`--${mark}`);
  square.animate({ outline: [`3px solid ${colour}`, "3px solid transparent"], outlineOffset: ["1px", "1px"] }, FLASH);
}
