// Draws charts in the page's own colours, and again when the reader's system becomes dark or light.
const CONFIG = {displayModeBar: false, responsive: true};

function themed(layout) {
  const style = getComputedStyle(document.documentElement), color = name => style.getPropertyValue(name).trim();
  const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--soft")};
  return {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {...layout.font, color: color("--ink")}, hoverlabel: {...layout.hoverlabel, bgcolor: color("--empty")},
    xaxis: {...layout.xaxis, ...axis}, yaxis: {...layout.yaxis, ...axis}};
}

// A line belongs to the box of its number, and is drawn while that is checked.
function showCharts(charts, boxes) {
  const show = () => {
    for (const [name, chart] of Object.entries(charts)) {
      const lines = chart.data.map(line => ({...line, visible: boxes[line.meta].checked}));
      Plotly.react(name, lines, themed(chart.layout), CONFIG);
    }
  };
  for (const box of boxes) box.onchange = show;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
