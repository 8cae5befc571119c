// The slider over a run's virtual time: rows of workers, and in words what each does at the chosen moment.
const KIND_COLORS = ["--forward", "--transfer", "--limit"];
const COMPUTING = 0, SENDING = 1, FAILED = 2;

// What each worker does at a moment: whether it computes or has failed, and whom it sends to.
function statesAt(run, moment) {
  const states = run.hosts.map(() => ({computes: false, failed: false, to: []}));
  for (let n = 0; n < run.worker.length; n++) {
    if (run.start[n] > moment || run.stop[n] <= moment) continue;
    const state = states[run.worker[n]];
    if (run.kind[n] === COMPUTING) state.computes = true;
    if (run.kind[n] === FAILED) state.failed = true;
    if (run.kind[n] === SENDING) state.to.push(run.other[n]);
  }
  return states;
}

function inWords(state) {
  if (state.failed) return "has failed";
  const more = state.to.length > 4 ? ` and ${state.to.length - 4} more` : "";
  const sends = state.to.length ? `sends to ${state.to.slice(0, 4).join(", ")}${more}` : "";
  return [state.computes ? "computes" : "", sends].filter(Boolean).join(", ") || "waits";
}

// The part of the recorded time that is in view: so many times shorter than all, with the moment in its middle where it
// can be.
function inView(run, moment, parts) {
  const size = run.knownSeconds / parts, from = Math.min(Math.max(moment - size / 2, 0), run.knownSeconds - size);
  return [from, from + size];
}

// A worker's name: its number and its host.
function named(run, worker) {
  return shortened(`${worker}: ${run.hosts[worker]}`, 22);
}

function namesWidth(canvas) {
  return Math.min(130, canvas.clientWidth / 3);
}

function drawLanes(canvas, run, moment, parts) {
  const [from, to] = inView(run, moment, parts), workers = run.hosts.length, scale = window.devicePixelRatio || 1;
  const row = Math.min(Math.max(Math.floor(420 / workers), 3), 26), whole = canvas.clientWidth, height = row * workers;
  const axis = 16;
  canvas.style.height = `${height + axis}px`;
  canvas.width = whole * scale; canvas.height = (height + axis) * scale;
  const context = canvas.getContext("2d"), left = namesWidth(canvas), width = whole - left;
  const x = time => width * (time - from) / (to - from);
  context.scale(scale, scale);
  // Where rows are too low for a name each, every second, third ... one has its name.
  context.fillStyle = color("--ink"); context.font = "11px system-ui, sans-serif"; context.textBaseline = "middle";
  for (let n = 0; n < workers; n += Math.ceil(13 / row)) context.fillText(named(run, n), 0, (n + 0.5) * row, left - 6);
  context.translate(left, 0);
  const gap = row > 5 ? 2 : row > 3 ? 1 : 0;
  context.fillText(seconds(from), 0, height + axis / 2);
  context.textAlign = "right";
  context.fillText(seconds(to), width, height + axis / 2);
  context.fillStyle = color("--empty");
  for (let n = 0; n < workers; n++) context.fillRect(0, n * row, width, row - gap);
  for (const kind of [COMPUTING, SENDING, FAILED]) {
    context.fillStyle = color(KIND_COLORS[kind]);
    for (let n = 0; n < run.worker.length; n++) {
      if (run.kind[n] !== kind || run.stop[n] < from || run.start[n] > to) continue;
      const thin = kind === SENDING ? (row - gap) / 3 : row - gap, begin = x(Math.max(run.start[n], from));
      const top = run.worker[n] * row + (row - gap - thin);
      context.fillRect(begin, top, Math.max(x(Math.min(run.stop[n], to)) - begin, 0.6), thin);
    }
  }
  context.fillStyle = color("--ink");
  context.fillRect(Math.min(x(moment), width - 1.5), 0, 1.5, height);
}

function showScrubber(runs) {
  const find = id => document.getElementById(id), slider = find("moment"), canvas = find("lanes"), play = find("play");
  const most = Number(slider.max);
  let timer = null;
  const run = () => runs[find("which").value], parts = () => Number(find("view").value);
  const moment = () => run().knownSeconds * Number(slider.value) / most;
  const show = () => {
    slider.step = most / (400 * parts());
    const now = moment(), states = statesAt(run(), now), words = states.map(inWords);
    drawLanes(canvas, run(), now, parts());
    find("states").replaceChildren(...words.map((text, n) => {
      const row = document.createElement("tr");
      for (const cell of [n, run().hosts[n], text])
        row.appendChild(document.createElement("td")).textContent = cell;
      return row;
    }));
    const count = test => states.filter(test).length;
    const said = `${seconds(now)}: ${count(one => one.computes)} compute, ${count(one => one.to.length)} send, ` +
      `${count(one => inWords(one) === "waits")} wait, ${count(one => one.failed)} have failed`;
    find("said").textContent = said;
    slider.setAttribute("aria-valuetext", find("said").textContent);
    const known = run().knownSeconds < run().endSeconds ? ` Only the first ${seconds(run().knownSeconds)} are recorded.` : "";
    find("known").textContent = `Seed ${run().seed}, ${seconds(run().endSeconds)}, ended by: ${run().end}.${known}`;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "play"; };
  play.onclick = () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= most) slider.value = 0;
    play.textContent = "stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + Number(slider.step);
      if (Number(slider.value) >= most) stop();
      show();
    }, 50);
  };
  canvas.onclick = event => {
    const [from, to] = inView(run(), moment(), parts());
    const left = namesWidth(canvas), share = Math.max(0, event.offsetX - left) / (canvas.clientWidth - left);
    slider.value = most * (from + (to - from) * share) / run().knownSeconds;
    show();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  slider.oninput = find("which").onchange = find("view").onchange = window.onresize = show;
  show();
}
