// Drawings of a lesson's figure (visualize/pages/lessons/figure_costs.py): a table of bars, numbers on a ruler, and rows of
// columns. Each is a function of the record; ``add`` and ``key`` are of figure.js, as is what it returns.

import { make, write } from "../../static/dom.js";

const SVG = "http://www.w3.org/2000/svg";

export function costs({ heads, rows, pictures, key: entries }, add, key) {
  const cells = rows.map(() => heads.map(() => make("td", "", make("span", "meter"), make("small"))));
  const head = make("tr", "", make("td"), ...heads.map((name) => make("th", { scope: "col" }, name)));
  const lines = rows.map((name, row) => make("tr", "", make("th", { scope: "row" }, name), ...cells[row]));
  add(make("table", "", make("thead", "", head), make("tbody", "", ...lines)));
  if (entries.length) add(key(...entries));
  function draw(at) {
    cells.forEach((row, i) => {
      const shown = pictures[at].cells[i];
      row.forEach((cell, column) => {
        const { parts, caption } = shown?.[column] ?? { parts: [], caption: "" };
        const [meter, small] = cell.children;
        meter.replaceChildren(...parts.map(([share, kind]) => Object.assign(make("i", kind), { style: `--share: ${share}` })));
        write(small, caption);
      });
    });
    return pictures[at].say;
  }
  return { count: pictures.length, draw };
}

/** Numbers above, what is stored of them below, and a line from each to its own. */
export function ruler({ lanes, pictures }, add, key) {
  const made = lanes.map((name) => {
    const caption = make("span", "caption");
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", "0 0 1000 100");
    picture.setAttribute("preserveAspectRatio", "none");
    add(make("div", "lane-of", make("p", "lane-name", make("b", "", name), " ", caption), make("div", "ruler-of", picture)));
    return { caption, picture };
  });
  add(key(["exact", "a number of the key, and what is stored of it"], ["mark", "what can be stored"]));
  const line = (kind, x, y, to, below) => {
    const node = document.createElementNS(SVG, "line");
    for (const [name, value] of Object.entries({ class: kind, x1: 1000 * x, y1: y, x2: 1000 * to, y2: below })) node.setAttribute(name, value);
    return node;
  };
  function draw(at) {
    pictures[at].lanes.forEach(({ marks, numbers, caption }, lane) => {
      write(made[lane].caption, caption);
      const ticks = marks.map((mark) => line("mark", mark, 76, mark, 100));
      made[lane].picture.replaceChildren(...ticks, ...numbers.map(([exact, kept]) => line("exact", exact, 0, kept, 76)));
    });
    return pictures[at].say;
  }
  return { count: pictures.length, draw };
}

/** A row of columns per lane. The columns have ``kinds``, or those read before and the one computed now differ. */
export function heights({ lanes, pictures, key: entries = [] }, add, key) {
  const drawn = lanes.map(({ name, shares, captions, kinds }) => {
    const caption = make("span", "caption");
    const cells = shares.map((share, i) => {
      const cell = make("i", { title: captions[i] });
      cell.style.setProperty("--share", share);
      return cell;
    });
    add(make("p", "lane-name", make("b", "", name), " ", caption), make("div", "columns", ...cells));
    return { caption, cells, captions, kinds };
  });
  if (entries.length) add(key(...entries));
  function draw(at) {
    for (const { caption, cells, captions, kinds } of drawn) {
      write(caption, captions[at]);
      cells.forEach((cell, i) => (cell.className = i > at ? "to-come" : kinds ? kinds[i] : i === at ? "computed" : "read"));
    }
    return pictures[at].say;
  }
  return { count: pictures.length, draw };
}
