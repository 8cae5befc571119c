// Draws charts in the page's own colours and width, and again when either changes.
const CONFIG = {displayModeBar: false, responsive: true};
const NARROW = 620;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A number with four digits, without an exponent, and seconds in a unit that makes them readable.
function digits(value) {
  return String(Number(Number(value.toPrecision(4)).toFixed(9)));
}

function unitOf(most) {
  return most >= 1 || most <= 0 ? [1, "s"] : most >= 1e-3 ? [1e-3, "ms"] : [1e-6, "us"];
}

function seconds(value) {
  const [size, unit] = unitOf(value);
  return `${digits(value / size)} ${unit}`;
}

function shortened(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function themed(layout) {
  const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--soft")};
  return {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {...layout.font, color: color("--ink")}, hoverlabel: {...layout.hoverlabel, bgcolor: color("--empty"), font: {color: color("--ink")}},
    legend: {...layout.legend, bgcolor: "rgba(0,0,0,0)"},
    updatemenus: (layout.updatemenus ?? []).map(menu => ({...menu, bgcolor: color("--empty"), font: {color: color("--ink")}})),
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
}

// On a narrow page a scale of colours lies below its map, not beside it, and fields have no room for figures.
function fitted(trace, width) {
  if (!trace.colorbar || width > NARROW) return trace;
  const colorbar = {...trace.colorbar, orientation: "h", thickness: 10, yref: "container", y: 0, yanchor: "bottom", x: 0.5, len: 1,
    nticks: 4, title: {text: ""}, ticksuffix: trace.colorbar.title ? ` ${trace.colorbar.title.text}` : ""};
  return {...trace, colorbar, texttemplate: ""};
}

// The rows of a legend above a chart, and a scale of colours below it, are added to its height.
function heightened(chart, width) {
  const {height, margin} = chart.layout;
  if (width <= NARROW && chart.data.some(trace => trace.colorbar))
    chart = {...chart, layout: {...chart.layout, height: height + 60, margin: {...margin, b: margin.b + 60}}};
  if (chart.layout.showlegend === false) return chart.layout;
  const names = chart.data.filter(trace => trace.showlegend !== false && trace.name).map(trace => 60 + 7 * trace.name.length);
  const rows = Math.ceil(names.reduce((sum, one) => sum + one, 0) / Math.max(width - 90, 200));
  return {...chart.layout, height: chart.layout.height + 20 * Math.max(rows - 1, 0)};
}

// Where a line has a box, by the number in its `meta`, it is drawn while that is checked.
function showCharts(charts, boxes = []) {
  const show = () => {
    for (const [name, chart] of Object.entries(charts)) {
      const place = document.getElementById(name), width = place.clientWidth;
      const traces = chart.data.map(trace => boxes[trace.meta] ? {...trace, visible: boxes[trace.meta].checked} : trace);
      Plotly.react(place, traces.map(trace => fitted(trace, width)), themed(heightened(chart, width)), CONFIG);
    }
  };
  for (const box of boxes) box.onchange = show;
  whenThemeOrWidthChange(show);
  show();
}

function whenThemeOrWidthChange(show) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  matchMedia(`(max-width: ${NARROW}px)`).addEventListener("change", show);
}
