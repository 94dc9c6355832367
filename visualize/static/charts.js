// The charts: Plotly redraws those whose columns have changed.

const { rolling } = setup;
const narrow = window.matchMedia("(max-width: 820px)");
const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showSendToCloud: false, doubleClick: "reset" };
const dirty = new Set();
let pans = 0; // what a person panned and zoomed is kept until this changes

const look = () => (body.classList.contains("dark") ? "dark" : "light");

for (const name of charts) {
  const button = make("button", "", $(`[data-chart=${name}] h2`).textContent);
  button.type = "button";
  button.onclick = () => {
    choose(name);
    window.decodeLab.address({ chart: name === charts[0] ? null : name });
  };
  button.dataset.for = name;
  $(".choose").append(button);
}

/** On a phone one chart is shown at a time. */
function choose(name) {
  for (const button of $(".choose").children) button.setAttribute("aria-pressed", String(button.dataset.for === name));
  for (const other of charts) $(`[data-chart=${other}]`).classList.toggle("chosen", other === name);
  charts.forEach((chart) => dirty.add(chart));
  draw();
}

const REST = 5; // times as long as a chart took, while a run is followed: the engine may be on this machine
let chartsDue = 0;

/** Redraw what is dirty. While the picture is ``moving``, only the rows in view are drawn, only of the chart that has
    waited longest; of a run under way, then of none for a while: a chart takes longer than all else of a picture. */
function drawCharts({ columns, layouts }, moving) {
  const began = performance.now();
  if (moving && began < chartsDue) return;
  for (const name of dirty) {
    dirty.delete(name);
    if (!charts.includes(name)) continue; // a table, which the page draws itself
    const plot = $(`[data-chart=${name}] .plot`);
    if (covered(name) || (narrow.matches && !plot.parentElement.classList.contains("chosen"))) continue;
    plotChart(plot, shells[name][look()], columns[name], layouts[name], moving && rolling.includes(name));
    if (!moving) continue;
    if (live()) chartsDue = performance.now() + REST * (performance.now() - began);
    return;
  }
}

/** A chart: its empty figure with the axes and the rows of the moment, all of them or those ``inView``. */
function plotChart(plot, shell, columns, axes, inView = false) {
  const layout = structuredClone(shell.layout);
  for (const [path, value] of Object.entries(axes)) {
    const [axis, key] = path.split(".");
    layout[axis][key] = value;
  }
  layout.uirevision = pans;
  const first = inView ? layout.xaxis.range[0] : -Infinity;
  Plotly.react(plot, shell.data.map((trace, i) => filled(trace, columns[i], first)), layout, CONFIG);
}

narrow.addEventListener("change", () => {
  charts.forEach((name) => dirty.add(name));
  schedule();
});

/** A trace with its rows: those that have a y, and none left of ``first``. */
function filled(trace, values, first) {
  const kept = (_, row) => values.y[row] !== null && values.x[row] >= first - 1;
  const { color, pattern, ...rest } = Object.fromEntries(Object.entries(values).map(([column, list]) => [column, list.filter(kept)]));
  const marker = { ...trace.marker, ...(color && { color }) };
  if (pattern) marker.pattern = { ...marker.pattern, shape: pattern };
  return { ...trace, ...rest, marker };
}
