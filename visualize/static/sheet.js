// What the pages share that draw answers from the server: charts in the look that is worn.
// Put before a page's own script, after elements.js.

/** A panel may change its size when what is around it does; Plotly watches the window only. */
const sized = new ResizeObserver((seen) => {
  for (const { target } of seen) if (target.data && target.offsetParent) Plotly.Plots.resize(target);
});

/** An empty figure of ``setup.shells`` with its data and axes, in the panel of that name; often it has one of its own. */
function drawChart(name, { columns, layout, shell: form = name }) {
  const plot = $(`[data-chart=${name}] .plot`);
  if (!plot.offsetParent) return; // not in view: drawn when it is
  if (!plot.role) asPicture(plot);
  const shell = shells[form][look()];
  const axes = laidOut(shell.layout, layout);
  // What was zoomed into is no longer there: the axes begin anew with every answer.
  const data = shell.data.map((trace, i) => ({ ...trace, meta: trace.meta ?? axes.yaxis.ticksuffix, ...columns[i] }));
  const squares = data.filter((_, i) => shell.data[i].meta);
  if (squares.length) fitSquares(plot, axes, squares);
  plotted(plot, data, { ...axes, uirevision: JSON.stringify(layout) }, squares.length ? counted(squares) : inWords(data));
  sized.observe(plot);
}

/** What is said while what stands there, if anything does, is no answer to what was asked last. */
const before = (text, shown) => (shown ? `${text} What is shown is from before.` : text);

/** Put these in place of what a list has. Who stood on a link or a button of it stands on the one in its place. */
function relist(list, items) {
  const stops = () => [...list.querySelectorAll("a, button")];
  const place = stops().indexOf(document.activeElement);
  list.replaceChildren(...items);
  stops()[place]?.focus();
}

/** Calls ``draw`` when light becomes dark or dark light. */
function onLook(draw) {
  let worn = look();
  new MutationObserver(() => {
    if (look() === worn) return;
    worn = look();
    draw();
  }).observe(body, { attributes: true, attributeFilter: ["class"] });
}
