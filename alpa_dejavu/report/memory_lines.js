// Memory of many stages: one is drawn boldly, the others pale behind it; a choice or a click says which.
function showMemory(chart, which) {
  const place = document.getElementById("memory");
  const show = () => {
    const chosen = Number(which.value);
    const lines = chart.data.map((line, stage) => ({...line, showlegend: false,
      line: stage === chosen ? {...line.line, color: color("--blue"), width: 2.4} : {...line.line, color: color("--soft"), width: 1},
      opacity: stage === chosen ? 1 : 0.35}));
    // What is drawn last is in front.
    Plotly.react(place, [...lines.filter((_, n) => n !== chosen), lines[chosen]], themed(chart.layout), CONFIG);
  };
  which.onchange = show;
  whenThemeOrWidthChange(show);
  show();
  place.on("plotly_click", event => {
    which.value = event.points[0].data.meta;
    show();
  });
}
