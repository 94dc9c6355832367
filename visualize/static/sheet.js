// What the pages share that draw answers from the server: elements, and charts in the look that is worn.
// Put before a page's own script, after its ``setup``; ``element`` is the component's own.

const $ = (selector) => element.querySelector(selector);
const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const look = () => (document.body.classList.contains("dark") ? "dark" : "light");

function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** What stands there already is not written again: the browser would lay it out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A panel may change its size when what is around it does; Plotly watches the window only. */
const sized = new ResizeObserver((seen) => {
  for (const { target } of seen) if (target.data && target.offsetParent) Plotly.Plots.resize(target);
});

/** An empty figure of ``setup.shells`` with its data and axes, in the panel of that name; often it has one of its own. */
function drawChart(name, { columns, layout, shell: form = name }) {
  const plot = $(`[data-chart=${name}] .plot`);
  if (!plot.offsetParent) return; // not in view: drawn when it is
  const shell = shells[form][look()];
  const axes = structuredClone(shell.layout);
  for (const [path, value] of Object.entries(layout)) {
    const [axis, key] = path.split(".");
    axes[axis][key] = value;
  }
  // What was zoomed into is no longer there: the axes begin anew with every answer.
  const data = shell.data.map((trace, i) => ({ ...trace, meta: axes.yaxis.ticksuffix, ...columns[i] }));
  Plotly.react(plot, data, { ...axes, uirevision: JSON.stringify(layout) }, CONFIG);
  sized.observe(plot);
}

/** Calls ``draw`` when light becomes dark or dark light. */
function onLook(draw) {
  let worn = look();
  new MutationObserver(() => {
    if (look() === worn) return;
    worn = look();
    draw();
  }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
