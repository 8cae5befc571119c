// Two texts of a drawing that cover each other; turned ones have boxes that are larger than they are.
function layout() {
  const apart = (a, b) => a.right <= b.left + 2 || b.right <= a.left + 2 || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
  const faults = [], legends = {};
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`${document.documentElement.scrollWidth} px wide`);
  for (const chart of document.querySelectorAll(".js-plotly-plot")) {
    const around = chart.getBoundingClientRect();
    const texts = [...chart.querySelectorAll("text")].filter(e => e.textContent.trim() && e.getBoundingClientRect().width)
      .filter(e => getComputedStyle(e).visibility !== "hidden" && !/rotate\((?!0)/.test(e.getAttribute("transform") || ""));
    const boxes = texts.map(e => e.getBoundingClientRect());
    for (let a = 0; a < texts.length; a++) {
      if (boxes[a].left < around.left - 1 || boxes[a].right > around.right + 1) faults.push(`${chart.id}: cut "${texts[a].textContent}"`);
      if (/\de[+-]?\d|×10|[\d.]+[kMGB]$/.test(texts[a].textContent)) faults.push(`${chart.id}: exponent "${texts[a].textContent}"`);
      for (let b = 0; b < a; b++)
        if (!apart(boxes[a], boxes[b])) faults.push(`${chart.id}: "${texts[a].textContent}" on "${texts[b].textContent}"`);
    }
    legends[chart.id] = [...chart.querySelectorAll(".legendtext")].map(e => e.textContent);
  }
  for (const e of document.querySelectorAll("h1, h2, h3, p, dl, li, label, select"))
    if (e.getBoundingClientRect().width && e.getBoundingClientRect().right > innerWidth) faults.push(`beside the page: ${e.textContent.slice(0, 40)}`);
  const shown = [...document.querySelectorAll("thead")].map(head =>
    [...head.querySelectorAll("th")].filter(e => e.getBoundingClientRect().width).map(e => e.textContent));
  // The kinds of tasks of a timeline, of bars and of shades.
  const kinds = (document.getElementById("timeline")?.data ?? []).flatMap(trace =>
    trace.type === "bar" ? [trace.name] : [...new Set(trace.z.flat())].filter(kind => kind !== null).map(kind => DONE[kind]));
  parent.postMessage(JSON.stringify({name: NAME, width: innerWidth, faults, legends, shown, kinds}), "*");
}
(function wait() { document.body.dataset.drawn || !document.getElementById("plotly") ? setTimeout(layout, 500) : setTimeout(wait, 50); })();
