// What every page's script builds with: elements, and empty charts in the look that is worn.
// Put before all other parts, after ``setup``; ``element`` is the component's own.

const $ = (selector) => element.querySelector(selector);

function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

/** What stands there already is not written again: the browser would lay it out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** To those who listen a chart is a picture, called what stands beside it, whatever that says by now. */
function asPicture(plot) {
  const words = [...plot.closest("[data-chart], figure").querySelectorAll("h2, h3, h4, .caption")];
  const taken = document.querySelectorAll("[id^=beside-]").length;
  words.forEach((node, i) => (node.id ||= `beside-${taken + i}`));
  plot.setAttribute("role", "img");
  if (words.length) plot.setAttribute("aria-labelledby", words.map(({ id }) => id).join(" "));
}

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const look = () => (document.body.classList.contains("dark") ? "dark" : "light");

/** A copy of an empty figure's layout with what is known by now: ``axes`` has values by path, as in "xaxis.range". */
function laidOut(layout, axes) {
  const whole = structuredClone(layout);
  for (const [path, value] of Object.entries(axes)) {
    const [axis, key] = path.split(".");
    whole[axis][key] = value;
  }
  return whole;
}
