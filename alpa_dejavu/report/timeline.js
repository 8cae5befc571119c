// The zoomable timeline: bars of single tasks where few are in view, else how much of the time each submesh does what.
const PASSES = ["forward", "backward", "weight"], DONE = [...PASSES, "collective", "update"];
const MOST_TASKS = 2500, LEAST_SHADES = 60, MOST_SHADES = 400, TASKS_OF_SHADE = 8, LEVELS = 10, GAP = 4;

function floats(text) {
  return new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
}

function opened(lane) {
  const columns = {};
  for (const kind of PASSES.concat(["forwardSend", "backwardSend", "update"])) if (kind in lane) columns[kind] = floats(lane[kind]);
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

// Which share of a task are collectives.
function collectiveShare(lane, kind, stage, batch) {
  if (kind === "weight" || kind === "update") return 0;
  return kind === "backward" && batch === lane.microBatches - 1 ? lane.lastBackwardCollective[stage] : lane[kind + "Collective"][stage];
}

function bars(lane, from, to, count, places) {
  const traces = {}, edge = count > 400 ? 0 : 0.5;
  const add = (kind, stage, start, end, text) => {
    const thin = kind === "transfer";
    traces[kind] ??= {type: "bar", orientation: "h", name: kind, base: [], x: [], y: [], text: [], width: [], offset: [],
      textposition: "none", showlegend: false, marker: {color: color("--" + kind), line: {width: edge, color: color("--card")}},
      hovertemplate: "%{text}<extra></extra>"};
    const trace = traces[kind];
    trace.base.push(start); trace.x.push(end - start); trace.y.push(lane.laneOf[stage]);
    trace.text.push(`${text}<br>${places[lane.laneOf[stage]]}`);
    trace.width.push(thin ? 0.16 : 0.62); trace.offset.push(thin ? -0.49 : -0.31);
  };
  eachTask(lane, from, to, (kind, stage, batch, start, end) => {
    const span = `${seconds(end - start)} from ${seconds(start)}`;
    if (kind === "update") return add("update", stage, start, end, `stage ${stage}: update, ${span}`);
    if (kind.endsWith("Send")) {
      const target = kind === "forwardSend" ? stage + 1 : stage - 1;
      const text = `stage ${stage} to ${target}: ${kind === "forwardSend" ? "activations" : "gradients"} of micro-batch ${batch}, ${span}`;
      if (lane.blocking) for (const one of [stage, target]) add("held", one, start, end, text + "<br>both stages wait for it");
      return add("transfer", stage, start, end, text);
    }
    const share = collectiveShare(lane, kind, stage, batch), split = end - share * (end - start);
    const text = `stage ${stage}: ${kind === "weight" ? "backward by weights" : kind} of micro-batch ${batch}, ${span}<br>of it collectives ${(100 * share).toFixed(1)} %`;
    add(kind, stage, start, split, text);
    if (share > 0) add("collective", stage, split, end, text);
  });
  return Object.values(traces);
}

// A column for each part of the time: how much of a row's height a colour fills is the share of that time.
function shades(lane, from, to, count) {
  // Of fewer tasks than that a part has now more and now less by chance.
  const parts = Math.min(MOST_SHADES, Math.max(LEAST_SHADES, Math.round(count / lane.stages / TASKS_OF_SHADE)));
  const width = (to - from) / parts;
  const rows = Array.from({length: lane.lanes}, () => DONE.map(() => new Float64Array(parts)));
  const fill = (shares, start, end) => {
    const first = Math.max(0, Math.floor((start - from) / width)), last = Math.min(parts - 1, Math.floor((end - from) / width));
    for (let b = first; b <= last; b++)
      shares[b] += Math.max(0, Math.min(end, from + (b + 1) * width) - Math.max(start, from + b * width)) / width;
  };
  eachTask(lane, from, to, (kind, stage, batch, start, end) => {
    if (kind.endsWith("Send")) return;
    const row = rows[lane.laneOf[stage]], split = end - collectiveShare(lane, kind, stage, batch) * (end - start);
    fill(row[DONE.indexOf(kind)], start, split);
    if (split < end) fill(row[DONE.indexOf("collective")], split, end);
  });
  const z = [], text = [], levels = LEVELS + GAP;
  for (const row of rows) {
    const said = Array.from(row[0], (_, b) => DONE.map((kind, k) => row[k][b] > 0 ? `${kind} ${(100 * row[k][b]).toFixed(0)} %` : "").filter(Boolean).join(", ") || "waits");
    for (let level = 0; level < levels; level++) {
      const height = LEVELS + GAP / 2 - level - 0.5;
      text.push(said);
      z.push(Array.from(row[0], (_, b) => {
        if (height < 0 || height > LEVELS) return null;
        let sum = 0;
        const kind = row.findIndex(shares => (sum += LEVELS * shares[b]) > height);
        return kind < 0 ? null : kind;
      }));
    }
  }
  const scale = DONE.flatMap((kind, k) => [[k / DONE.length, color("--" + kind)], [(k + 1) / DONE.length, color("--" + kind)]]);
  return [{type: "heatmap", x0: from + width / 2, dx: width, y0: -0.5 + 0.5 / levels, dy: 1 / levels, z, text,
    zmin: -0.5, zmax: DONE.length - 0.5, colorscale: scale, showscale: false, hoverongaps: true,
    hovertemplate: "%{text}<extra></extra>"}];
}

// Ticks at round numbers, in the unit in which the last of them is readable.
function ticks(from, to, most) {
  const rough = (to - from) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(times => times * power >= rough), [size, unit] = unitOf(to);
  const places = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9)), tickvals = [];
  for (let n = Math.ceil(from / step); n * step <= to; n++) tickvals.push(n * step);
  return {tickvals, ticktext: tickvals.map(value => (value / size).toFixed(places)), title: {text: `time in the step (${unit})`}};
}

// A stage's name with its hosts: on two lines, or on one where there are many rows.
function labels(names, narrow, many) {
  const safe = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const place = (hosts, devices) => narrow ? shortened(hosts, many ? 12 : 18) : `${shortened(hosts, 30)}, ${devices}`;
  return names.map(([name, hosts, devices]) => `<b>${safe(name)}</b>${many ? " " : "<br>"}${safe(place(hosts, devices))}`);
}

function showTimeline(place, lanes, names) {
  const all = Object.fromEntries(Object.entries(lanes).map(([name, lane]) => [name, opened(lane)]));
  let lane = Object.values(all)[0], drawing = false, shown = [0, lane.stepSeconds];
  const tasks = 2 * lane.stages * lane.microBatches * (lane.sends ? 2 : 1);
  const narrow = () => place.clientWidth < NARROW;
  const part = () => lane.stepSeconds * Math.min(1, 0.25 * MOST_TASKS / tasks);
  const many = names.length > 24, places = labels(names, false, true);
  const layout = range => ({
    height: 110 + Math.max(3, lane.lanes) * (many ? 20 : lane.lanes > 8 ? 34 : 46), barmode: "overlay", bargap: 0, dragmode: "zoom",
    margin: {l: 20, r: 20, t: 12, b: 46}, font: {family: "system-ui, sans-serif", size: narrow() ? 11 : 12.5, color: color("--ink")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: color("--empty"), hovermode: "closest",
    hoverlabel: {align: "left", bgcolor: color("--empty"), font: {color: color("--ink")}},
    xaxis: {...ticks(...range, narrow() ? 4 : 10), range, zeroline: false, showgrid: false},
    yaxis: {tickvals: names.map((_, n) => n), ticktext: labels(names, narrow(), many), range: [lane.lanes - 0.4, -0.6], fixedrange: true, zeroline: false, showgrid: false, automargin: true},
  });
  const draw = async (from, to) => {
    let count = 0;
    eachTask(lane, from, to, () => count++);
    drawing = true;
    await Plotly.react(place, count > MOST_TASKS ? shades(lane, from, to, count) : bars(lane, from, to, count, places), layout([from, to]), CONFIG);
    shown = [from, to];
    drawing = false;
  };
  const show = name => {
    const size = part(), middle = lane.stepSeconds / 2;
    const ranges = {start: [0, size], middle: [middle - size / 2, middle + size / 2], end: [lane.stepSeconds - size, lane.stepSeconds], "whole step": [0, lane.stepSeconds]};
    return draw(...ranges[name]);
  };
  for (const button of document.querySelectorAll("#ranges button")) button.onclick = () => show(button.dataset.part);
  const which = document.getElementById("which");
  if (which) which.onchange = () => { lane = all[which.value]; show("whole step"); };
  // A link that ends in #start opens on the first tasks.
  show(location.hash === "#start" ? "start" : "whole step").then(() => place.on("plotly_relayout", change => {
    if (drawing) return;
    if (change["xaxis.autorange"]) show("whole step");
    else if ("xaxis.range[0]" in change) draw(Math.max(0, change["xaxis.range[0]"]), Math.min(lane.stepSeconds, change["xaxis.range[1]"]));
  }));
  const keys = {"+": [0.25, 0.75], "=": [0.25, 0.75], "-": [-0.5, 1.5], ArrowLeft: [-0.25, 0.75], ArrowRight: [0.25, 1.25]};
  place.onkeydown = event => {
    if (event.key === "0") return show("whole step");
    if (!(event.key in keys)) return;
    event.preventDefault();
    const width = shown[1] - shown[0], [from, to] = keys[event.key].map(share => shown[0] + share * width);
    const size = Math.min(to - from, lane.stepSeconds), first = Math.min(Math.max(0, from), lane.stepSeconds - size);
    draw(first, first + size);
  };
  whenThemeOrWidthChange(() => draw(...shown));
}
