// The zoomable timeline: bars of single tasks where few are in view, shades of how busy each submesh is where many are.
const COLORS = {forward: "#5b8def", backward: "#1f9e89", weight: "#8fd3c4", collective: "#f2a33a", send: "#b05cc6", held: "#ead8f2", update: "#6b7280"};
const PASSES = ["forward", "backward", "weight"];
const MOST_TASKS = 2500, SHADES = 400;

function unpacked(text) {
  return new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
}

function opened(lane) {
  const columns = {};
  for (const kind of PASSES.concat(["forwardSend", "backwardSend", "update"])) if (kind in lane) columns[kind] = unpacked(lane[kind]);
  return {...lane, ...columns};
}

// All tasks that touch the window: called with kind, stage, micro-batch, start, end.
function eachTask(lane, from, to, visit) {
  for (const kind of PASSES.concat(["forwardSend", "backwardSend"])) {
    const times = lane[kind] ?? [];
    for (let n = 0; n < times.length; n += 2)
      if (times[n + 1] > from && times[n] < to && times[n + 1] > times[n])
        visit(kind, Math.floor(n / 2 / lane.microBatches), (n / 2) % lane.microBatches, times[n], times[n + 1]);
  }
  for (let s = 0; s < lane.stages; s++)
    if (lane.update[2 * s + 1] > from && lane.update[2 * s] < to && lane.update[2 * s + 1] > lane.update[2 * s])
      visit("update", s, -1, lane.update[2 * s], lane.update[2 * s + 1]);
}

function bars(lane, from, to, count) {
  const made = {}, edge = count > 400 ? 0 : 0.5;
  const add = (kind, stage, start, end, text) => {
    const thin = kind === "send";
    made[kind] ??= {type: "bar", orientation: "h", name: kind, base: [], x: [], y: [], text: [], width: [], offset: [],
      textposition: "none", showlegend: false, marker: {color: COLORS[kind], line: {width: edge, color: "#fff"}},
      hovertemplate: "%{text}<extra></extra>"};
    const trace = made[kind];
    trace.base.push(start); trace.x.push(end - start); trace.y.push(lane.laneOf[stage]); trace.text.push(text);
    trace.width.push(thin ? 0.16 : 0.62); trace.offset.push(thin ? -0.49 : -0.31);
  };
  eachTask(lane, from, to, (kind, stage, batch, start, end) => {
    const span = `${(1e3 * (end - start)).toPrecision(4)} ms from ${start.toPrecision(5)} s`;
    if (kind === "update") return add("update", stage, start, end, `stage ${stage}: update, ${span}`);
    if (kind.endsWith("Send")) {
      const target = kind === "forwardSend" ? stage + 1 : stage - 1;
      const text = `stage ${stage} to ${target}: ${kind === "forwardSend" ? "activations" : "gradients"} of micro-batch ${batch}, ${span}`;
      if (lane.blocking) for (const one of [stage, target]) add("held", one, start, end, text + "<br>both stages wait for it");
      return add("send", stage, start, end, text);
    }
    const last = kind === "backward" && batch === lane.microBatches - 1;
    const share = kind === "weight" ? 0 : last ? lane.lastBackwardCollective[stage] : lane[kind + "Collective"][stage];
    const split = end - share * (end - start);
    const text = `stage ${stage}: ${kind === "weight" ? "backward by weights" : kind} of micro-batch ${batch}, ${span}<br>of it collectives ${(100 * share).toFixed(1)} %`;
    add(kind, stage, start, split, text);
    if (share > 0) add("collective", stage, split, end, text);
  });
  return Object.values(made);
}

function shades(lane, from, to) {
  const width = (to - from) / SHADES;
  const rows = Array.from({length: lane.lanes}, () => ({forward: new Float64Array(SHADES), backward: new Float64Array(SHADES)}));
  eachTask(lane, from, to, (kind, stage, batch, start, end) => {
    if (kind.endsWith("Send")) return;
    const row = rows[lane.laneOf[stage]][kind === "forward" ? "forward" : "backward"];
    const first = Math.max(0, Math.floor((start - from) / width)), last = Math.min(SHADES - 1, Math.floor((end - from) / width));
    for (let b = first; b <= last; b++)
      row[b] += Math.max(0, Math.min(end, from + (b + 1) * width) - Math.max(start, from + b * width)) / width;
  });
  const z = rows.map(row => Array.from(row.forward, (f, b) => 100 * (f + row.backward[b])));
  const text = rows.map(row => Array.from(row.forward, (f, b) => `forward ${(100 * f).toFixed(0)} %, backward and update ${(100 * row.backward[b]).toFixed(0)} %`));
  return [{type: "heatmap", x0: from + width / 2, dx: width, y0: 0, dy: 1, z, text, zmin: 0, zmax: 100, ygap: 6,
    colorscale: [[0, color("--empty")], [1, "#2f6fd6"]], showscale: false,
    hovertemplate: "row %{y} at %{x:.5g} s<br>%{text}<extra></extra>"}];
}

function showTimeline(place, lanes, names) {
  const all = Object.fromEntries(Object.entries(lanes).map(([name, lane]) => [name, opened(lane)]));
  let lane = Object.values(all)[0], drawing = false, shown = [0, lane.stepSeconds];
  const tasks = 2 * lane.stages * lane.microBatches * (lane.sends ? 2 : 1);
  const narrow = () => place.clientWidth < NARROW;
  const part = () => lane.stepSeconds * Math.min(1, 0.25 * MOST_TASKS / tasks);
  const layout = range => ({
    height: 110 + Math.max(3, lane.lanes) * (lane.lanes > 8 ? 34 : 46), barmode: "overlay", bargap: 0, dragmode: "zoom",
    margin: {l: narrow() ? 70 : 190, r: 20, t: 32, b: 46}, font: {family: "system-ui, sans-serif", size: 12.5, color: color("--ink")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: color("--empty"), hovermode: "closest", hoverlabel: {align: "left"},
    xaxis: {title: {text: "time in the step (s)"}, range, zeroline: false, showgrid: false},
    yaxis: {tickvals: names.map((_, n) => n), ticktext: narrow() ? names.map(name => name.split("<br>")[0]) : names, range: [lane.lanes - 0.4, -0.6], fixedrange: true, zeroline: false, showgrid: false},
  });
  const draw = async (from, to) => {
    let count = 0;
    eachTask(lane, from, to, () => count++);
    drawing = true;
    await Plotly.react(place, count > MOST_TASKS ? shades(lane, from, to) : bars(lane, from, to, count), layout([from, to]), CONFIG);
    shown = [from, to];
    drawing = false;
  };
  const show = name => {
    const size = part(), middle = lane.stepSeconds / 2;
    const ranges = {start: [0, size], middle: [middle - size / 2, middle + size / 2], end: [lane.stepSeconds - size, lane.stepSeconds], whole: [0, lane.stepSeconds]};
    return draw(...ranges[name]);
  };
  for (const button of document.querySelectorAll("#ranges button")) button.onclick = () => show(button.dataset.part);
  const which = document.getElementById("which");
  if (which) which.onchange = () => { lane = all[which.value]; show("whole"); };
  // A link that ends in #start opens on the first tasks.
  show(location.hash === "#start" ? "start" : "whole").then(() => place.on("plotly_relayout", change => {
    if (drawing) return;
    if (change["xaxis.autorange"]) show("whole");
    else if ("xaxis.range[0]" in change) draw(Math.max(0, change["xaxis.range[0]"]), Math.min(lane.stepSeconds, change["xaxis.range[1]"]));
  }));
  const keys = {"+": [0.25, 0.75], "=": [0.25, 0.75], "-": [-0.5, 1.5], ArrowLeft: [-0.25, 0.75], ArrowRight: [0.25, 1.25]};
  place.onkeydown = event => {
    if (event.key === "0") return show("whole");
    if (!(event.key in keys)) return;
    event.preventDefault();
    const width = shown[1] - shown[0], [from, to] = keys[event.key].map(share => shown[0] + share * width);
    const size = Math.min(to - from, lane.stepSeconds), first = Math.min(Math.max(0, from), lane.stepSeconds - size);
    draw(first, first + size);
  };
  whenThemeOrWidthChange(() => draw(...shown));
}
