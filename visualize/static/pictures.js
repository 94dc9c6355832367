// Pictures to take away: every chart, and what the page draws itself, as PNG or SVG.

import { button, download, make, placeTip } from "./dom.js";

const SCALE = 2; // pixels of a PNG for one of the page
const LEAST = [720, 360]; // pixels of the page: a chart in a narrow panel is drawn larger

/** Let people save a picture, by a small button in ``head``. ``name``: of the file, when it is asked for. ``svg``: makes the
    picture's SVG. ``more``: other kinds, [name, for what, what to do]. */
export function offerPictures(head, name, svg, more = []) {
  const file = (kind) => `decode-lab-${name().toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-")}.${kind}`;
  const kinds = [
    ["PNG", "for a slide", async () => download(file("png"), "image/png", await blobOf(await drawn(await svg(), SCALE)))],
    ["SVG", "for print", async () => download(file("svg"), "image/svg+xml", await svg())],
    ...more.map(([kind, use, act]) => [kind, use, () => act(file)]),
  ];
  const opener = button({ className: "take", ariaLabel: "Save as a picture", title: "Save as a picture" }, "⤓");
  opener.onclick = () => {
    if (!opener.showPopover) return kinds[0][2](); // an older browser
    menu.replaceChildren(...kinds.map(([kind, use, act]) => button({ onclick: () => (menu.hidePopover(), act()) }, make("b", "", kind), ` ${use}`)));
    document.body.append(menu);
    menu.showPopover();
    placeTip(menu, opener);
    menu.firstChild.focus();
  };
  head.append(opener);
}

const menu = make("div", { className: "take-menu", popover: "auto" });
menu.addEventListener("keydown", (event) => event.key === "Escape" && event.stopPropagation()); // it closes the menu, and stops no run

/** Let people save a panel as it is seen. */
export function offerPanel(panel) {
  const head = panel.querySelector(".panel-head");
  offerPictures(head, () => head.querySelector("h2, h3").textContent, () => svgOf(panel));
}

/** Let people save a Plotly chart, once it is drawn for the first time. One in a map is part of its picture. */
export function offerChart(plot) {
  if (plot.dataset.offered || plot.closest(".map")) return;
  plot.dataset.offered = true;
  const panel = plot.closest("figure, [data-chart]") ?? plot.parentElement;
  const title = () => panel.querySelector("h2, h3, h4")?.textContent.trim() || plot.dataset.title || "chart";
  offerPictures(panel.querySelector("figcaption, .panel-head") ?? panel, title, () => chartSvg(plot, title()));
}

/** A chart as it is drawn, with its title and its traces' names, on the panel's ground. */
async function chartSvg(plot, text) {
  const { margin, ...layout } = plot.layout;
  const ground = getComputedStyle(plot.closest(".panel") ?? document.body).backgroundColor;
  const named = plot.data.filter(({ name, y }) => name && y?.length).length > 1;
  const size = { width: Math.max(plot.clientWidth, LEAST[0]), height: Math.max(plot.clientHeight, LEAST[1]) };
  const [above, below] = [38, named ? 30 : 0];
  const figure = {
    data: plot.data.map((trace) => ({ ...upTo(trace, plot.until), showlegend: trace.showlegend ?? Boolean(trace.name && trace.y?.length && trace.mode !== "text") })),
    layout: {
      ...layout,
      autosize: false,
      paper_bgcolor: ground,
      margin: { ...margin, t: margin.t + above, b: margin.b + below },
      title: { text, x: 0.02, xanchor: "left", y: 0.98, yanchor: "top", font: { size: 15 } },
      ...(named && !layout.showlegend && { showlegend: true, legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", font: { size: 11 } } }),
    },
  };
  const address = await Plotly.toImage(figure, { format: "svg", width: size.width, height: size.height + above + below });
  return decodeURIComponent(address.slice(address.indexOf(",") + 1));
}

/** A trace without the rows right of ``x``: while a run is played, some are drawn that have not happened yet. */
function upTo(trace, x) {
  if (x === undefined || x === Infinity) return trace;
  const kept = (list) => (Array.isArray(list) && list.length === trace.x.length ? list.filter((_, row) => trace.x[row] <= x) : list);
  return Object.fromEntries(Object.entries(trace).map(([key, value]) => [key, kept(value)]));
}

/** Draw an SVG on a canvas. */
export async function drawn(svg, scale, canvas = make("canvas")) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  const even = (pixels) => 2 * Math.round((pixels * scale) / 2); // as videos need it
  const [width, height] = [even(image.width), even(image.height)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d", { alpha: false }).drawImage(image, 0, 0, width, height);
  return canvas;
}

export const blobOf = (canvas, type = "image/png", quality = 0.9) => new Promise((done) => canvas.toBlob(done, type, quality));

// -- what the page draws itself, as shapes and texts: no program but a browser draws HTML within an SVG --------------

const ASIDE = ".making, .badge, .steps-of, button, select, input"; // no part of the picture
const brush = make("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
const colours = new Map();

/** A computed colour in a form that every program reads: an SVG attribute's value and its opacity. */
function inkOf(colour) {
  if (!colours.has(colour)) {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = colour;
    brush.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = brush.getImageData(0, 0, 1, 1).data;
    colours.set(colour, [`rgb(${red},${green},${blue})`, (alpha / 255).toFixed(3)]);
  }
  return colours.get(colour);
}

const COLOUR = /(?:rgba?|color|oklab|hsl)\([^)]*\)/; // the first of a computed value
const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const paint = (kind, colour) => (([ink, alpha]) => `${kind}="${ink}" ${kind}-opacity="${alpha}"`)(inkOf(colour));

/** A part of the page as it is seen: boxes with their grounds, hatching, edges and bars, and texts. */
export function svgOf(root) {
  const box = root.getBoundingClientRect();
  const whole = { x: 0, y: 0, width: box.width, height: box.height, round: 0 };
  const below = rectangle(whole, paint("fill", getComputedStyle(root).backgroundColor));
  return clipped(whole, below + element(root), `xmlns="${document.querySelector("svg").namespaceURI}"`);

  function element(node) {
    const style = getComputedStyle(node);
    if (style.display === "none" || node.matches(ASIDE)) return "";
    const round = parseFloat(style.borderTopLeftRadius) || 0;
    const placed = ({ left, top, width, height }) => ({ x: left - box.left, y: top - box.top, width, height, round });
    const at = placed(node.getBoundingClientRect());
    if (node.matches("svg")) return drawing(node, at);
    const parts = style.display === "inline" ? [...node.getClientRects()].map(placed) : [at]; // on several lines
    let inner = [...node.childNodes].map((child) => (child.nodeType === Node.TEXT_NODE ? words(child, style) : child.nodeType === Node.ELEMENT_NODE ? element(child) : "")).join("");
    if (style.overflowX !== "visible" && inner) inner = clipped(at, inner);
    inner = (style.visibility === "visible" ? parts.map((part) => ground(style, part)).join("") : "") + inner + sign(getComputedStyle(node, "::after"), at);
    return style.opacity < 1 ? `<g opacity="${style.opacity}">${inner}</g>` : inner;
  }

  function ground(style, at) {
    const parts = [];
    const { backgroundColor, backgroundImage, backgroundSize, boxShadow } = style;
    if (inkOf(backgroundColor)[1] > 0) parts.push(rectangle(at, paint("fill", backgroundColor)));
    const sizes = backgroundSize.split(", ");
    const layers = backgroundImage.split(/, (?=none|[\w-]+-gradient)/); // the uppermost first
    parts.push(...layers.map((image, i) => filled(at, image, sizes[i % sizes.length])).reverse());
    const inset = boxShadow.includes("inset") && boxShadow.match(COLOUR)?.[0];
    if (inset) parts.push(edge(at, inset, parseFloat(boxShadow.match(/([\d.]+)px inset/)?.[1] ?? 1), ""));
    const wide = parseFloat(style.borderTopWidth);
    const dashes = { dashed: `stroke-dasharray="${3 * wide} ${2 * wide}"`, dotted: `stroke-dasharray="${wide} ${wide}"` };
    const edged = wide && style.borderTopStyle !== "none" && at.width < box.width;
    if (edged && style.borderBottomWidth === "0px") parts.push(rectangle({ ...at, height: wide, round: 0 }, paint("fill", style.borderTopColor)));
    else if (edged) parts.push(edge(at, style.borderTopColor, wide, dashes[style.borderTopStyle] ?? ""));
    return parts.join("");
  }

  /** A sign in the corner of a box that no text of the page has. */
  function sign({ content, position, fontSize, color }, { x, y, width }) {
    if (position !== "absolute" || !content.startsWith('"')) return "";
    return `<text x="${x + width - 1}" y="${y + parseFloat(fontSize)}" text-anchor="end" font-size="${fontSize}" ${paint("fill", color)}>${escaped(content.slice(1, -1))}</text>`;
  }

  /** The texts of a node, line by line. A line under or through one has a colour of its own: the outer text's. */
  function words(node, style) {
    if (style.visibility !== "visible") return "";
    const lines = [];
    const range = document.createRange();
    for (const { 0: piece, index } of node.data.matchAll(/\s*\S+/g)) {
      const blank = piece.length - piece.trimStart().length;
      range.setStart(node, index + blank);
      range.setEnd(node, index + piece.length);
      const { left, top, height } = range.getBoundingClientRect();
      const line = lines.at(-1);
      if (line && Math.abs(line.top - top) < 2) line.text += piece;
      else lines.push({ left, top, height, text: piece.trimStart() });
    }
    brush.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = brush.measureText("x");
    const line = style.textDecorationLine === "none" ? "" : `text-decoration="${style.textDecorationLine}" ${paint("fill", style.textDecorationColor)}`;
    const font = `font-family="${escaped(style.fontFamily)}" font-size="${style.fontSize}" font-weight="${style.fontWeight}" ${line}`;
    const upright = style.writingMode === "horizontal-tb";
    const placed = ({ left, top, height, text }) => {
      const [x, y] = [left - box.left, top - box.top];
      const at = upright ? `x="${x}" y="${y + (height - ascent - descent) / 2 + ascent}"` : `transform="translate(${x + descent} ${y}) rotate(90)"`;
      return `<text ${at} ${font} xml:space="preserve"><tspan ${paint("fill", style.color)}>${escaped(text)}</tspan></text>`;
    };
    return lines.map(placed).join("");
  }
}

/** An SVG of the page at its place: of a chart, whose styles are its own. */
function drawing(node, { x, y }) {
  const copy = node.cloneNode(true);
  for (const [name, value] of Object.entries({ x, y })) copy.setAttribute(name, value);
  return new XMLSerializer().serializeToString(copy);
}

/** What an image of a background paints along the lower edge of a box: a plain part of it, or lines, which also stand for dots. */
function filled({ x, y, width, height, round }, image, size) {
  const colour = image.match(new RegExp(COLOUR, "g"))?.find((one) => inkOf(one)[1] > 0);
  if (!colour) return "";
  const tiled = /conic|radial/.test(image);
  const [wide, high = "100%"] = tiled ? ["100%"] : size.replaceAll("auto", "100%").split(" ");
  const pixels = (text, whole) => (text.endsWith("%") ? (parseFloat(text) / 100) * whole : parseFloat(text));
  const part = { x, width: pixels(wide, width), height: pixels(high, height) };
  const at = { ...part, y: y + height - part.height, round: part.height < height ? 0 : round };
  if (!at.width || !at.height) return "";
  if (!tiled && !image.startsWith("repeating")) return rectangle(at, paint("fill", colour));
  const [stops, apart] = tiled ? [[0, 1], 4] : [image.split(colour).slice(1).map(parseFloat), Math.max(...image.match(/[\d.]+(?=px)/g)) * Math.SQRT2];
  const lines = Array.from({ length: (at.width + at.height) / apart }, (_, i) => `M${at.x} ${at.y + i * apart}l${at.width} ${-at.width}`);
  return clipped(at, `<path d="${lines.join("")}" stroke-width="${Math.max(...stops) - Math.min(...stops)}" ${paint("stroke", colour)}/>`);
}

const clipped = ({ x, y, width, height }, inner, more = "") =>
  `<svg ${more} x="${x}" y="${y}" width="${width}" height="${height}" viewBox="${x} ${y} ${width} ${height}" overflow="hidden">${inner}</svg>`;

const rectangle = ({ x, y, width, height, round }, look) => `<rect x="${x}" y="${y}" width="${width}" height="${height}" rx="${round}" ${look}/>`;

/** The edge of a box, within it. */
function edge({ x, y, width, height, round }, colour, wide, dashes) {
  const inner = { x: x + wide / 2, y: y + wide / 2, width: Math.max(0, width - wide), height: Math.max(0, height - wide), round };
  return rectangle(inner, `fill="none" stroke-width="${wide}" ${paint("stroke", colour)} ${dashes}`);
}
