// The KV cache's blocks as squares: the owner by colour and number, how full each is, and what just happened to it.
// Rows are those of visualize/reduce/block_map.py. Only squares that differ from what is drawn are touched.

import { calm, counted, labelAsImage, make, tone } from "./dom.js";

/** Whether a square with sides of so many pixels has room for "×" before the number of sequences that share it. */
const roomy = (side, number) => side >= 14 + 6 * String(number).length;
const FLASH = 900; // milliseconds for which a block shows what happened to it, even if frames come faster

/** ``redraw`` is called when the squares have another size. */
export class BlockGrid {
  constructor(root, redraw) {
    this.root = root;
    this.redraw = redraw;
    this.squares = [];
    this.drawn = [];
    this.chosen = null;
    labelAsImage(root);
    new ResizeObserver(() => this.fit()).observe(root);
  }

  /** As many squares as there are blocks, as large as there is room for. */
  lay(count) {
    this.squares = Array.from({ length: count }, (_, block) => {
      const square = make("i", "square free");
      square.dataset.block = block;
      return square;
    });
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
    while (side > 9 && Math.ceil(count / Math.floor(wide / side)) * side > high) side -= 1;
    this.root.style.setProperty("--side", `${side}px`);
    this.root.classList.toggle("small", !roomy(side, 1));
    if (this.side === side) return;
    this.side = side;
    this.drawn.fill(""); // all are drawn again
    this.redraw();
  }

  /** ``pool``: the table's columns. ``marks``: what happened to blocks since the last call, by block. */
  draw(pool, size, marks) {
    if (pool.state.length !== this.squares.length) this.lay(pool.state.length);
    this.squares.forEach((square, block) => {
      const [state, owners, fill, mark] = [pool.state[block], pool.owners[block], pool.fill[block], pool.mark[block]];
      const key = `${state} ${owners} ${fill} ${mark} ${owners.includes(this.chosen)}`;
      if (key !== this.drawn[block]) {
        this.drawn[block] = key;
        this.#fill(square, state, owners, fill / size, mark);
      }
      if (marks.has(block) && !calm.matches) flash(square, marks.get(block));
    });
    this.root.ariaDescription = holdings(pool.owners);
  }

  #fill(square, state, owners, part, mark) {
    const shared = owners.length > 1;
    const whose = shared ? "shared" : owners.length ? `own ${tone(owners[0])}` : "";
    square.className = `square ${state} ${whose}${owners.includes(this.chosen) ? " chosen" : ""}`;
    square.textContent = shared ? `${roomy(this.side, owners.length) ? "×" : ""}${owners.length}` : (owners[0] ?? "");
    square.style.setProperty("--part", `${Math.round(100 * part)}%`);
    square.dataset.mark = mark;
  }
}

/** Who holds the blocks, for screen readers. ``owners``: for each block, the sequences that hold it. */
function holdings(owners) {
  const held = owners.filter(({ length }) => length);
  const shared = held.filter(({ length }) => length > 1).length;
  const all = new Set(held.flat()).size;
  return `${held.length} of ${counted(owners.length, "block")} held by ${counted(all, "request")}${shared ? `, ${shared} of them by several` : ""}`;
}

function flash(square, mark) {
  const colour = getComputedStyle(square).getPropertyValue(`--${mark}`);
  square.animate([{ outline: `3px solid ${colour}`, outlineOffset: "1px" }, { outline: "3px solid transparent", outlineOffset: "1px" }], FLASH);
}
