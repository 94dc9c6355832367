// What pages that draw the server's answers share: charts in the current look.
// It comes after elements.js and before a page's own script.

/** A panel may change its size when its surroundings do; Plotly watches only the window. */
const sized = new ResizeObserver((seen) => {
  for (const { target } of seen) if (target.data && target.offsetParent) Plotly.Plots.resize(target);
});

/** Draw a figure of ``setup.shells`` with data and axes in the panel of that name; ``shell``: if its name differs. */
function drawChart(name, { columns, layout, shell: form = name }) {
  const plot = $(`[data-chart=${name}] .plot`);
  if (!plot.offsetParent || !window.Plotly) return; // drawn when it is in view, and Plotly there
  if (!plot.role) asPicture(plot);
  const shell = shells[form][look()];
  const axes = laidOut(shell.layout, layout);
  // Zooming lasts until an answer has other axes.
  const data = shell.data.map((trace, i) => ({ ...trace, meta: trace.meta ?? axes.yaxis.ticksuffix, ...columns[i] }));
  const squares = data.filter((_, i) => shell.data[i].meta);
  if (squares.length) fitSquares(plot, axes, squares);
  plotted(plot, data, { ...axes, uirevision: JSON.stringify(layout) }, squares.length ? ofEachKind(squares) : inWords(data));
  sized.observe(plot);
}

/** ``text`` while the last request has no answer yet; ``shown``: whether an earlier answer is still on the page. */
const before = (text, shown) => (shown ? `${text} What is shown is from before.` : text);

const APART = 2500; // milliseconds between steps of a progress that screen readers are told of

/** Tells screen readers of a progress in a status of their own, since the one on the screen changes too often for them:
    of a step now and then, and of the last at once. */
function teller(node) {
  let heard = -APART;
  let hearing;
  return (text, underWay) => {
    clearTimeout(hearing);
    hearing = setTimeout(() => {
      if (node.textContent !== text) heard = performance.now();
      write(node, text);
    }, underWay ? heard + APART - performance.now() : 0);
  };
}

/** Writes a progress, and tells screen readers of it without its count of tokens, which is on the screen only. */
function progressTeller() {
  const sayAloud = teller($(".heard"));
  return (text, underWay) => {
    write($(".progress"), text);
    sayAloud(text.replace(/: [\d,]+%? (of .*)?tokens$/, ""), underWay);
  };
}

/** Replace a list's items. The focus moves from a link or a button to the one that takes its place. */
function relist(list, items) {
  const stops = () => [...list.querySelectorAll("a, button")];
  const place = stops().indexOf(document.activeElement);
  list.replaceChildren(...items);
  stops()[place]?.focus();
}
