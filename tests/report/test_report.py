"""The report: one page that needs nothing else, shows what was planned, and escapes what users named."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from alpa_dejavu._util import units
from alpa_dejavu.problem import Model, Submesh
from alpa_dejavu.report import html_report
from alpa_dejavu.report._page import serving_report
from alpa_dejavu.simulation.step import StageTimes, simulate
from models import chain
from serving_plans import PLAN
from timelines import small_planned
from unlike import islands

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Page(html.parser.HTMLParser):
    """The tags, the texts outside of scripts, and the rows of the tables."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.rows, self._inside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._inside):
            self.texts.append(data)
            if self._inside[-1:] in (["td"], ["th"]):
                self.rows[-1].append(data)


def constant(page, name):
    return json.loads(re.search(rf"^const {name} = (.*);$", page, re.MULTILINE)[1])


def floats(packed, *shape):
    return np.frombuffer(base64.b64decode(packed), dtype="<f4").reshape(shape)


@pytest.fixture(scope="module")
def planned():
    return small_planned()


@pytest.fixture(scope="module")
def page(planned):
    return html_report(planned)


def test_the_page_needs_nothing_else(page):
    own = re.sub(r'(<script type="text/plain" id="plotly">)[\w+/=]*', r"\1", page)
    assert len(own) < len(page) - 1e6
    assert "http://" not in own
    assert "https://" not in own
    for _, attributes in Page(page).tags:
        assert not attributes.get("src")
        assert attributes.get("href", "data:,") == "data:,"
    assert "default-src 'none'" in own


def test_a_large_plan_stays_below_three_megabytes():
    large = small_planned(num_layers=32, num_stages=8, micro_batches=1024)
    assert len(large.plan.stages) == 8
    assert len(html_report(large)) < 3e6


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b_overlap_friendly", "gpipe", "inference", "interleaved", "zb_v"])
def test_every_schedule_has_a_report(schedule):
    planned = small_planned(schedule=schedule, micro_batches=9)
    page = html_report(planned)
    lane, stages = constant(page, "LANES")["predicted"], len(planned.plan.stages)
    forward = floats(lane["forward"], stages, 9, 2)
    np.testing.assert_allclose(forward, planned.timeline.forward_s, rtol=1e-6)
    backward = floats(lane["backward"], stages, 9, 2)
    np.testing.assert_allclose(backward, planned.timeline.backward_s, rtol=1e-6)
    assert np.isnan(backward).all() == (schedule == "inference")
    assert lane["blocking"] == (schedule in ("1f1b", "gpipe", "inference"))
    assert ("weight" in lane) == (schedule == "zb_v")
    assert len(constant(page, "LANE_NAMES")) == lane["lanes"] == 3
    assert lane["laneOf"] == list(planned.plan.submesh_of)


def test_the_tables_tell_the_plan(planned, page):
    rows = Page(page).rows
    stage = planned.plan.stages[1]
    heads = next(row for row in rows if row[0] == "stage" and "memory" in row)
    cells = dict(zip(heads, rows[rows.index(heads) + 2], strict=True))
    assert stage.layers[0] == stage.layers[1], "else the row has a range"
    assert (cells["stage"], cells["layers"]) == ("1", str(stage.layers[0]))
    assert cells["submesh"] == f"{stage.submesh.num_hosts}x{stage.submesh.devices_per_host}"
    assert (cells["compute"], cells["memory"]) == (units.seconds(stage.compute_s), units.size(stage.memory_bytes))
    runner_up = next(row for row in rows if row[-1] == "longer bubbles")
    assert runner_up[0] == "2"
    assert runner_up[3] == "+25.00%"
    degrees = "tensor 2 to 4, pipeline 3, data 1, no ZeRO, recompute none"
    assert runner_up[1] == f"{degrees}, schedule 1f1b, 8 micro-batches, 6 layers"
    assert ["5", "layer 5", "2", "10 GFLOP", "20 GFLOP", "9.54 MiB", "9.54 MiB"] in rows
    assert ["all", "300 ms"] in rows
    texts = " ".join(Page(page).texts)
    assert units.seconds(planned.plan.step_s) in texts
    assert "gpt on example" in texts


def test_the_heat_map_is_the_cost_table_with_the_cut(planned, page):
    chart = constant(page, "CHARTS")["costs"]
    maps = [trace for trace in chart["data"] if trace["type"] == "heatmap"]
    marks = [trace for trace in chart["data"] if trace["type"] == "scatter"]
    assert len(maps) == len(planned.space.submeshes)
    for s, trace in enumerate(maps):
        shown = np.array(trace["z"], dtype=float)
        expected = planned.table.compute_costs_s[:, :, s, :].min(axis=2) * 1e3
        np.testing.assert_allclose(shown, np.where(np.isinf(expected), np.nan, expected))
    cut = [stage.layers for stage in planned.plan.stages]
    assert list(zip(marks[-1]["y"], marks[-1]["x"], strict=True)) == cut
    assert sorted(pair for mark in marks[:-1] for pair in zip(mark["y"], mark["x"], strict=True)) == sorted(cut)


def on_unlike_links():
    """A plan on four hosts: stages 0 and 1 on the first, stage 2 on the two last ones."""
    made, cluster = small_planned(), islands()
    hosts = ("a",), ("a",), ("c", "d")
    both = zip(made.plan.stages, hosts, strict=True)
    stages = [dataclasses.replace(stage, hosts=names, submesh=Submesh(len(names), 2)) for stage, names in both]
    return dataclasses.replace(made, cluster=cluster, plan=dataclasses.replace(made.plan, stages=tuple(stages)))


def test_unlike_links_are_drawn_with_the_stages_on_them():
    made = on_unlike_links()
    shown, within, between = constant(html_report(made), "CHARTS")["links"]["data"]
    names = [host.name for host in made.cluster.hosts]
    rates = np.array([[link.bytes_per_s for link in row] for row in made.cluster.links])
    np.testing.assert_allclose(10 ** np.array(shown["z"], dtype=float), rates)
    assert shown["x"] == shown["y"] == names
    assert dict(zip(zip(within["y"], within["x"], strict=True), within["text"], strict=True)) == {
        ("a", "a"): "within stage 0, 1",
        **{(a, b): "within stage 2" for a in "cd" for b in "cd"},
    }
    assert dict(zip(zip(between["y"], between["x"], strict=True), between["text"], strict=True)) == {
        ("a", "a"): "from stage 0 to 1", ("a", "c"): "from stage 1 to 2", ("a", "d"): "from stage 1 to 2",
    }  # fmt: skip


def test_what_users_named_is_escaped():
    evil = "<script>alert(1)</script>"
    model = chain(6, flop=1e10, parameter_bytes=1e7, activation_bytes=1e7)
    layers = tuple(dataclasses.replace(layer, name=evil) for layer in model.layers)
    made = small_planned(model=Model(layers, model.tensors), name=evil)
    stages = tuple(dataclasses.replace(stage, hosts=(evil,)) for stage in made.plan.stages)
    page = html_report(dataclasses.replace(made, plan=dataclasses.replace(made.plan, stages=stages)))
    assert evil not in page
    # The packed plotly.js, what unpacks it, and the page's own.
    assert sum(tag == "script" for tag, _ in Page(page).tags) == 3
    assert "&lt;script&gt;" in constant(page, "LANE_NAMES")[0]


def test_measured_times_stand_beside_predicted_ones(planned):
    stages = [dataclasses.replace(stage, forward_s=1.5 * stage.forward_s) for stage in planned.timeline.stages]
    page = html_report(planned, simulate(stages, 8))
    assert list(constant(page, "LANES")) == ["predicted", "measured"]
    head = next(row for row in Page(page).rows if row[:1] == ["stage"])
    row = next(row for row in Page(page).rows if row[0] == "0" and len(row) == len(head))
    assert row[head.index("measured forward")] == units.seconds(stages[0].forward_s)
    assert float(row[head.index("measured to predicted")]) == pytest.approx(3.5 / 3, abs=0.02)
    assert "measured step" in page


def test_timelines_of_another_plan_are_refused(planned):
    with pytest.raises(ValueError, match="3 stages and a timeline 1"):
        html_report(planned, simulate([StageTimes(1, 1)], 8))


def browsed(tmp_path, *pages):
    """What a browser has made of the last page, which may frame the others by their number."""
    for n, page in enumerate(pages):
        (tmp_path / f"{n}.html").write_text(page, encoding="utf-8")
    return subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom",
            (tmp_path / f"{len(pages) - 1}.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_all_charts_without_a_word_of_complaint(page, tmp_path):
    made = browsed(tmp_path, page)
    assert "CONSOLE" not in made.stderr
    drawn = re.findall(r'<div id="(\w+)"[^>]* class="js-plotly-plot">', made.stdout)
    assert set(drawn) == {"timeline", "memory", "costs", "layers"}
    # A bar for each forward and backward of three stages and eight micro-batches at least.
    assert made.stdout.count('class="point"') > 2 * 3 * 8


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_nothing_is_wider_than_the_page_nor_lies_on_something_else(page, tmp_path):
    measure = """<script>plotly.then(() => setTimeout(() => {
      const box = name => [...document.querySelectorAll("#costs " + name)].map(e => e.getBoundingClientRect());
      const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
      const [map] = box(".bglayer rect, .plot"), scales = box(".colorbar").filter(one => one.width);
      parent.postMessage([innerWidth, document.documentElement.scrollWidth <= innerWidth, scales.length,
        scales.every(one => apart(one, map))].join(" "), "*");
    }, 500));</script>"""
    frames = "".join(f'<iframe src="0.html" width="{width}" height="900"></iframe>' for width in (400, 800, 1400))
    heard = "<script>onmessage = event => document.body.append(`[${event.data}]`);</script>"
    made = browsed(tmp_path, page.replace("</body>", measure + "</body>"), f"<body>{heard}{frames}</body>")
    said = sorted(re.findall(r"\[(\d+ \w+ \d+ \w+)\]", made.stdout), key=lambda one: int(one.split()[0]))
    assert said == [f"{width} true 1 true" for width in (400, 800, 1400)]


def test_both_phases_are_shown_as_bars_and_in_a_table():
    page = serving_report(PLAN)
    assert page.count("first token: 1.54 ms") == page.count("each next token: 1.54 ms") == 1
    for said in ("<td>300 us</td>", "computing: 1 ms", "12345 tokens/s", "by the auto-sharding engine", "a note"):
        assert said in page
    bars = [re.findall(r"width: ([0-9.]+)%", bar) for bar in re.findall(r'<div class="phase">.*?</div>', page)]
    assert len(bars) == 2
    for shares in bars:
        assert sum(map(float, shares)) == pytest.approx(100, abs=1e-2)


def test_what_users_named_is_escaped_and_no_script_runs():
    page = serving_report(dataclasses.replace(PLAN, model="<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
