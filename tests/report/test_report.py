"""The report: one page that needs nothing else, shows what was planned, and escapes what users named."""

from __future__ import annotations

import base64
import dataclasses
import re

import numpy as np
import pytest

from alpa_dejavu._util import units
from alpa_dejavu.calibration import Calibration, HostLinks
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.problem import Confidence, Link, Model, Submesh
from alpa_dejavu.report import html_report, serving_report
from alpa_dejavu.report._tables import layer_rows
from alpa_dejavu.report.calibration_page import calibration_page
from alpa_dejavu.simulation.step import StageTimes, simulate
from made_up import fitted
from models import chain
from pages import WIDTHS, Page, browsed, browser, laid_out, own_text, page_data
from serving_plans import PLAN
from timelines import small_planned
from unlike import islands


def floats(packed, *shape):
    return np.frombuffer(base64.b64decode(packed), dtype="<f4").reshape(shape)


@pytest.fixture(scope="module")
def planned():
    return small_planned()


@pytest.fixture(scope="module")
def page(planned):
    return html_report(planned)


def test_the_page_needs_nothing_else(page):
    own = own_text(page)
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
    lane, stages = page_data(page)["lanes"]["predicted"], len(planned.plan.stages)
    forward = floats(lane["forward"], stages, 9, 2)
    np.testing.assert_allclose(forward, planned.timeline.forward_s, rtol=1e-6)
    backward = floats(lane["backward"], stages, 9, 2)
    np.testing.assert_allclose(backward, planned.timeline.backward_s, rtol=1e-6)
    assert np.isnan(backward).all() == (schedule == "inference")
    assert lane["blocking"] == (schedule in ("1f1b", "gpipe", "inference"))
    assert ("weight" in lane) == (schedule == "zb_v")
    assert len(page_data(page)["laneNames"]) == lane["lanes"] == 3
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
    assert ["3-5", "layer 3 to layer 5", "2", "10 GFLOP", "20 GFLOP", "9.54 MiB", "9.54 MiB"] in rows
    assert ["all", "300 ms"] in rows
    texts = " ".join(Page(page).texts)
    assert units.seconds(planned.plan.step_s) in texts
    assert "gpt on example" in texts


def test_the_heat_map_is_the_cost_table_with_the_cut(planned, page):
    chart = page_data(page)["charts"]["costs"]
    maps = [trace for trace in chart["data"] if trace["type"] == "heatmap"]
    marks = [trace for trace in chart["data"] if trace["type"] == "scatter"]
    assert len(maps) == len(planned.space.submeshes)
    for s, trace in enumerate(maps):
        shown = np.array(trace["z"], dtype=float)
        expected = planned.table.compute_costs_s[:, :, s, :].min(axis=2) * 1e3
        np.testing.assert_allclose(shown, np.where(np.isinf(expected), np.nan, expected), rtol=1e-4)
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


def on_v100(calibration):
    """A calibration as if it were of V100, which machines that are known have."""
    device = dataclasses.replace(named_cluster("p3.16xlarge").hosts[0].device, memory_bytes=16e9)
    return dataclasses.replace(calibration, devices={device.name: device}, device_spread={}, products={})


def of_hosts():
    """A calibration of twelve hosts, each of which reaches half of the others faster."""
    numbers = range(12)
    links = tuple(
        tuple(None if a == b else Link(5e-5, 1.25e9 if (a + b) % 2 else 1.25e10) for b in numbers) for a in numbers
    )
    hosts = HostLinks(tuple(f"compute-{n}.example.org" for n in numbers), links)
    return Calibration("twelve hosts", "made up", "2026-11-01", host_links=hosts)


def test_unlike_links_are_drawn_with_the_stages_on_them():
    made = on_unlike_links()
    shown, within, between = page_data(html_report(made))["charts"]["links"]["data"]
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
    # The packed plotly.js, what unpacks it, the packed data, and the page's own.
    assert sum(tag == "script" for tag, _ in Page(page).tags) == 4
    assert page_data(page)["laneNames"][0][1] == evil, "the script escapes it"


def test_measured_times_stand_beside_predicted_ones(planned):
    stages = [dataclasses.replace(stage, forward_s=1.5 * stage.forward_s) for stage in planned.timeline.stages]
    page = html_report(planned, simulate(stages, 8))
    assert list(page_data(page)["lanes"]) == ["predicted", "measured"]
    head = next(row for row in Page(page).rows if row[:1] == ["stage"])
    row = next(row for row in Page(page).rows if row[0] == "0" and len(row) == len(head))
    assert row[head.index("measured forward")] == units.seconds(stages[0].forward_s)
    assert float(row[head.index("measured to predicted")]) == pytest.approx(3.5 / 3, abs=0.02)
    assert "measured step" in page


def test_timelines_of_another_plan_are_refused(planned):
    with pytest.raises(ValueError, match="3 stages and a timeline 1"):
        html_report(planned, simulate([StageTimes(1, 1)], 8))


@browser
def test_a_browser_draws_all_charts_without_a_word_of_complaint(page, tmp_path):
    drawn, complaints = browsed(tmp_path, page)
    assert complaints == []
    charts = re.findall(r'<div class="chart js-plotly-plot" id="(\w+)"', drawn)
    assert set(charts) == {"timeline", "memory", "costs", "layers"}
    # A bar for each forward and backward of three stages and eight micro-batches at least.
    assert drawn.count('class="point"') > 2 * 3 * 8


@pytest.fixture(scope="module")
def layouts(page, tmp_path_factory):
    """All kinds of pages of this room, and a plan of many stages and long names, as a browser lays them out."""
    long = small_planned(num_layers=32, num_stages=8, micro_batches=1024, name="a-model-of-" + "many-parts/" * 9)
    pages = {
        "plan": page, "long": html_report(long), "links": html_report(on_unlike_links()),
        "serving": serving_report(PLAN), "calibration": calibration_page(on_v100(fitted())),
        "hosts": calibration_page(of_hosts()),
    }  # fmt: skip
    return laid_out(tmp_path_factory.mktemp("pages"), pages)


@browser
def test_nothing_is_wider_than_the_page_nor_lies_on_something_else(layouts):
    assert len(layouts) == 6 * len(WIDTHS)
    assert {key: row["faults"] for key, row in layouts.items() if row["faults"]} == {}


@browser
def test_narrow_pages_keep_what_is_read_first(layouts):
    narrow, wide = (layouts["plan", width]["shown"][0] for width in WIDTHS)
    assert narrow == ["stage", "layers", "compute", "memory"]
    assert set(narrow) < set(wide)


@browser
def test_legends_have_all_that_is_drawn(layouts, page):
    for width in WIDTHS:
        assert layouts["plan", width]["legends"]["layers"] == ["forward", "backward", "collectives"]
        assert layouts["links", width]["legends"]["links"] == ["within stages", "from stage to stage"]
        assert len(layouts["calibration", width]["legends"]["chart-0"]) == 4
    keys = re.findall(r'<span class="key" style="background: var\(--(\w+)\)"></span>([\w ]+)<', page)
    assert dict(keys)["forward"] == "forward"
    assert dict(keys)["backward"] == "backward"
    assert {"collective", "transfer", "held", "update", "empty"} <= set(dict(keys))


@browser
def test_forward_and_backward_differ_in_bars_and_where_many_tasks_are_shades(layouts):
    assert {"forward", "backward", "transfer"} <= set(layouts["plan", 1400]["kinds"])
    assert {"forward", "backward"} <= set(layouts["long", 1400]["kinds"])
    assert "transfer" not in layouts["long", 1400]["kinds"], "they are shades"


def test_screen_readers_get_headings_captions_and_alternatives(page):
    tags = Page(page).tags
    assert [tag for tag, _ in tags if tag in ("h1", "h2", "h3")][:2] == ["h1", "h2"]
    assert sum(tag == "table" for tag, _ in tags) == sum(tag == "caption" for tag, _ in tags)
    assert all(attributes["scope"] == "col" for tag, attributes in tags if tag == "th")
    for _, attributes in tags:
        if attributes.get("role") == "img" or "scroll" in attributes.get("class", "").split():
            assert attributes["aria-label"]
        if "chart" in attributes.get("class", "").split():
            assert attributes["role"] == "img"


def test_how_sure_a_plan_is_has_a_card(planned):
    sure = Confidence(0.83, 0.3, (0.25, 0.4), 200, 9, "assumed spreads", "1 to 3 stages")
    page = html_report(dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, confidence=sure)))
    card = re.search(r'<section id="sureness">.*?</section>', page, re.DOTALL)[0]
    texts = " ".join(text.strip() for text in Page(card).texts if text.strip())
    assert "expected step 300 ms, 90 % interval from 250 ms to 400 ms" in texts
    assert "83 % that it is within 5 % of the best of 9 candidates: 1 to 3 stages" in texts
    assert "assumed spreads" in texts
    assert 'id="sureness"' not in html_report(planned)


def test_layers_that_are_alike_share_a_row(planned):
    named = [dataclasses.replace(layer, name=f"block {n}") for n, layer in enumerate(planned.model.layers)]
    rows = layer_rows(dataclasses.replace(planned, model=Model(tuple(named), planned.model.tensors)))["rows"]
    spans = [(first.layers[0], first.layers[1]) for first in planned.plan.stages]
    assert [row[0] for row in rows] == [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    assert [row[1] for row in rows] == [f"block {a}" if a == b else f"block {a} to block {b}" for a, b in spans]


def test_both_phases_are_shown_as_bars_and_in_a_table():
    page = serving_report(PLAN)
    assert page.count("first token: 1.54 ms") == page.count("each next token: 1.54 ms") == 1
    for said in (">300 us</td>", "computing: 1 ms", "12345 tokens/s", "by the auto-sharding engine", "a note"):
        assert said in page
    bars = [re.findall(r"width: ([0-9.]+)%", bar) for bar in re.findall(r'<div class="shares".*?</div>', page)]
    assert len(bars) == 2
    for shares in bars:
        assert sum(map(float, shares)) == pytest.approx(100, abs=1e-2)


def test_what_users_named_is_escaped_and_no_script_runs():
    page = serving_report(dataclasses.replace(PLAN, model="<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
