// Draws charts in the page's own colours and width, and again when either changes.
const CONFIG = {displayModeBar: false, responsive: true};
const NARROW = 620;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function themed(layout) {
  const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--soft")};
  return {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {...layout.font, color: color("--ink")}, hoverlabel: {...layout.hoverlabel, bgcolor: color("--empty")},
    legend: {...layout.legend, bgcolor: "rgba(0,0,0,0)"},
    updatemenus: (layout.updatemenus ?? []).map(menu => ({...menu, bgcolor: color("--empty"), font: {color: color("--ink")}})),
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
}

// On a narrow page a scale of colours lies below its map, not beside it.
function fitted(trace, width) {
  if (!trace.colorbar || width > NARROW) return trace;
  return {...trace, colorbar: {...trace.colorbar, orientation: "h", thickness: 10, y: -0.18, yanchor: "top", x: 0.5, len: 1}};
}

// Where a line has a box, by the number in its `meta`, it is drawn while that is checked.
function showCharts(charts, boxes = []) {
  const show = () => {
    for (const [name, chart] of Object.entries(charts)) {
      const place = document.getElementById(name);
      const traces = chart.data.map(trace => boxes[trace.meta] ? {...trace, visible: boxes[trace.meta].checked} : trace);
      Plotly.react(place, traces.map(trace => fitted(trace, place.clientWidth)), themed(chart.layout), CONFIG);
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
