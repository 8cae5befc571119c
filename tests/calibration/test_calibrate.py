"""`alpa-dejavu calibrate`: figures recovered from made-up measurements, within a budget, resumable; and the command."""

import dataclasses
import itertools
import json
import logging
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu.calibration import prices, read_calibration, write_calibration
from alpa_dejavu.calibration.bench import BETWEEN, HOST_MEMORY, WITHIN, CollectiveProbe, PipelineProbe, ProbePlace
from alpa_dejavu.calibration.calibrate import calibrate
from alpa_dejavu.calibration.fit_links import ENOUGH, LinkModel, fit_sends, predicted_s
from alpa_dejavu.calibration.measurements import Measurement, kept_measurements
from alpa_dejavu.cli.main import main
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency
from measured_cluster import LINK, PRIOR, TRUE_LINK, MadeUp, cluster_of, kept, measure
from pages import page_data

NOTHING = {"device_spread": {"A100-SXM-80GB": {"step_s": 0.1}}, "host_memory": {}}


@pytest.mark.parametrize("hosts", [1, 2])
def test_figures_are_recovered(tmp_path, hosts):
    cluster, bench = cluster_of(PRIOR, LINK, hosts), MadeUp()
    found = measure(tmp_path, cluster, bench)
    device = found.devices["test"]
    assert (device.dispatch_s, device.step_s) == (pytest.approx(4e-3, rel=0.1), pytest.approx(7e-3, rel=0.1))
    assert dataclasses.replace(device, dispatch_s=1e-3, step_s=1e-3) == PRIOR
    assert set(found.device_spread["test"]) == {"dispatch_s", "step_s"}
    for one in found.links:
        assert one.link.bytes_per_s == pytest.approx(1e9, rel=0.2)
        assert one.link.latency_s == pytest.approx(1.2e-4, rel=0.3)
        assert one.link.send_bytes_per_s == pytest.approx(5e8, rel=0.3)
        assert one.spread["bytes_per_s"] < 0.5
    assert [one.within for one in found.links] == [True, False][:hosts]
    assert found.missing == ()
    assert found.fits[0].held_out["mape"] < 0.25
    path = tmp_path / "c.json"
    write_calibration(found, path)
    applied = read_calibration(path).applied_to(cluster)
    assert applied.hosts[0].device.dispatch_s == pytest.approx(device.dispatch_s)
    assert prices(cluster, found, "auto", "auto").models.latency == AnalyticLatency()
    gpus = cluster_of(dataclasses.replace(PRIOR, name="A100-SXM-80GB"), LINK, hosts)
    of_gpus = dataclasses.replace(found, devices={"A100-SXM-80GB": gpus.hosts[0].device}, links=(), **NOTHING)
    assert isinstance(prices(gpus, of_gpus, "auto", "auto").models.latency, KernelLatency), "only starts were measured"
    assert applied.links[0][0].bytes_per_s == pytest.approx(found.links[0].link.bytes_per_s)


def test_nothing_measured_leaves_what_was_known_and_says_so(tmp_path):
    bench = MadeUp()
    found = measure(tmp_path, cluster_of(PRIOR, LINK), bench, budget_s=1e-9)
    assert len(bench.ran) <= 1
    assert found.devices["test"].flop_per_s["float32"] == 5e10
    assert any("collectives within a host: nothing was measured" in said for said in found.missing)
    with pytest.raises(ValueError, match="the budget is 0"):
        calibrate(cluster_of(PRIOR, LINK), bench, kept(tmp_path, cluster_of(PRIOR, LINK)), 0.0, "no")


def test_a_run_is_resumed_without_measuring_again(tmp_path):
    cluster, first, second = cluster_of(PRIOR, LINK), MadeUp(), MadeUp()
    measure(tmp_path, cluster, first, budget_s=15.0)
    found = measure(tmp_path, cluster, second, resume=True)
    assert not set(first.ran) & set(second.ran)
    third = MadeUp()
    again = measure(tmp_path, cluster, third, resume=True)
    assert third.opened == []
    assert again.devices == found.devices
    fourth = MadeUp()
    measure(tmp_path, cluster, fourth)
    assert len(fourth.ran) > len(second.ran)


def test_what_fails_is_told_and_left_out(tmp_path, caplog):
    cluster, bench = cluster_of(PRIOR, LINK), MadeUp(failing=("all_to_all",))
    with caplog.at_level(logging.WARNING):
        found = measure(tmp_path, cluster, bench)
    assert "all_to_all" in caplog.text
    assert any("all_to_all" in sentence and "out of memory" in sentence for sentence in found.missing)
    # Workers are started anew after a failure, and at most three failures of a place are taken.
    assert 2 <= bench.opened.count(ProbePlace("collectives", WITHIN)) <= 4
    whole = MadeUp()
    measure(tmp_path, cluster, whole, resume=True)
    assert any(getattr(probe, "name", "") == "all_to_all" for probe in whole.ran)


def test_links_between_hosts_are_fitted_apart():
    names = "all_reduce", "all_gather"
    listed = [CollectiveProbe(name, 1 << power, 4, 1, True) for name in names for power in (10, 20, 25)]
    model = LinkModel(LINK, listed, 2)
    assert model.fit({}).unsure.min() > ENOUGH
    seconds = {n: predicted_s(one, TRUE_LINK, 2) for n, one in enumerate(listed)}
    assert model.fit(seconds).link.bytes_per_s == pytest.approx(1e9, rel=0.2)
    assert model.left_out_errors(seconds)["mape"] < 0.2
    link, spread = fit_sends(LINK, [], [])
    assert link.sending == pytest.approx(LINK.sending)
    assert spread["send_bytes_per_s"] > 0.5


LINKS, SUM = ProbePlace("collectives", WITHIN), CollectiveProbe("all_reduce", 8, 2, 1, False)


def test_what_earlier_releases_measured_of_devices_is_passed_over(tmp_path):
    store = kept(tmp_path, cluster_of(PRIOR, LINK))
    with store.path.open("a", encoding="utf-8") as file:
        file.write('{"what": "programs", "where": "test", "probe": {"name": "add"}, "seconds": {"run_s": 0.5}}\n')
    store.add(Measurement(LINKS, SUM, {"run_s": 0.5}))
    assert len(kept(tmp_path, cluster_of(PRIOR, LINK), resume=True)) == 1
    assert [row.probe for row in kept_measurements(store.path)] == [SUM]


def test_half_a_line_is_dropped_with_a_note(tmp_path, caplog):
    cluster = cluster_of(PRIOR, LINK)
    store = kept(tmp_path, cluster)
    seconds = {"dispatch_s": 1.0, "step_s": 1.0, "send_s": 1.0}
    store.add(Measurement(ProbePlace("pipelines", WITHIN), PipelineProbe(4096), seconds))
    store.add(Measurement(LINKS, SUM, {"run_s": 0.5}))
    whole = store.path.read_text(encoding="utf-8")
    store.path.write_text(whole + '{"what": "colle', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        again = kept(tmp_path, cluster, resume=True)
    assert "written by half" in caplog.text
    assert store.path.read_text(encoding="utf-8") == whole
    assert again.at(LINKS) == {SUM: {"run_s": 0.5}}
    assert len(again) == 2


def test_a_measurement_that_is_there_twice_is_named_with_both_lines(tmp_path, caplog):
    cluster = cluster_of(PRIOR, LINK)
    store = kept(tmp_path, cluster)
    for run_s in (0.5, 0.7):
        store.add(Measurement(LINKS, SUM, {"run_s": run_s}))
    with caplog.at_level(logging.WARNING):
        again = kept(tmp_path, cluster, resume=True)
    assert "line 3: measures the same as line 2" in caplog.text
    assert again.at(LINKS) == {SUM: {"run_s": 0.7}}


LINE = {"what": "collectives", "where": WITHIN, "probe": dataclasses.asdict(SUM), "seconds": {"run_s": 0.5}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: this isn't JSON"),
        ("[" * 100_000, "line 2: lists in lists more than 100 deep; take the line out"),
        ("[]", "line 2: is '\\[\\]', but must be an object"),
        (LINE | {"seconds": {"run_s": -0.5}}, "run_s is -0.5, but must be a finite number above 0"),
        (LINE | {"seconds": {"run_s": float("nan")}}, "run_s is nan"),
        (LINE | {"seconds": {"run_ms": 0.5}}, "must have run_s"),
        (LINE | {"where": "within a hots"}, "where is 'within a hots'; did you mean 'within a host'"),
        (LINE | {"what": "songs"}, "what is 'songs'"),
        (LINE | {"probe": dataclasses.asdict(SUM) | {"name": "send"}}, "there is no collective"),
        (LINE | {"probe": {"title": "add"}}, "the probe is"),
        ({"what": "collectives", "where": BETWEEN, "probe": {}, "seconds": {}}, "the probe is"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, said):
    cluster = cluster_of(PRIOR, LINK)
    path = kept(tmp_path, cluster).path
    with path.open("a", encoding="utf-8") as file:
        file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    with pytest.raises(ValueError, match=said):
        kept(tmp_path, cluster, resume=True)


def test_measurements_of_another_cluster_or_version_are_refused(tmp_path):
    path = kept(tmp_path, cluster_of(PRIOR, LINK)).path
    with pytest.raises(ValueError, match=r"is of another cluster: .*hosts is 1 there and 2 here"):
        kept(tmp_path, cluster_of(PRIOR, LINK, hosts=2), resume=True)
    path.write_text('{"version": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="is of version 1, but this program reads 2"):
        kept(tmp_path, cluster_of(PRIOR, LINK), resume=True)
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="no first line"):
        kept(tmp_path, cluster_of(PRIOR, LINK), resume=True)


@pytest.mark.alpa
def test_the_command_refuses_before_anything_is_started(tmp_path, monkeypatch):
    import ray

    def nobody(**_):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(ray, "init", nobody)
    output = tmp_path / "c.json"
    run = CliRunner().invoke
    result = run(main, ["calibrate", "--output", str(output)])
    assert result.exit_code == 1
    assert "no Ray cluster to connect to" in result.stderr
    assert "--local N" in result.stderr
    assert run(main, ["calibrate", "--output", str(output), "--budget", "0"]).exit_code == 2
    assert run(main, ["calibrate", "--output", str(output), "--hosts", "2"]).exit_code == 2
    result = run(main, ["calibrate", "--output", str(tmp_path / "no" / "c.json")])
    assert "there is no folder" in result.stderr
    kept_path = tmp_path / "c.json.measurements.jsonl"
    kept_path.write_text("{}\n", encoding="utf-8")
    result = run(main, ["calibrate", "--output", str(output)])
    assert "go on with --resume, or delete it" in result.stderr
    assert kept_path.read_text(encoding="utf-8") == "{}\n"
    assert not output.exists()


@pytest.mark.alpa
def test_the_commands_budget_goes_by_the_clock_that_is_handed_in(tmp_path, monkeypatch):
    from alpa_dejavu.alpa import ray_bench

    bench = MadeUp()
    monkeypatch.setattr(ray_bench, "ray_bench", lambda machine: (cluster_of(PRIOR, LINK, hosts=2), bench))
    command = ["calibrate", "--output", str(tmp_path / "c.json"), "--budget", "20"]
    result = CliRunner().invoke(main, command, obj=lambda: bench.now)
    assert result.exit_code == 0, result.output
    assert 15 <= bench.now <= 22


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_is_calibrated_and_the_file_is_taken(tmp_path):
    import ray

    output = tmp_path / "c.json"
    command = ["calibrate", "--output", str(output), "--local", "2", "--budget", "90"]
    # A look at the clock takes a second, whatever else runs meanwhile: there is one before each measurement.
    result = CliRunner().invoke(main, command, obj=itertools.count().__next__)
    assert result.exit_code == 0, result.output
    assert not ray.is_initialized()
    found = read_calibration(output)
    lines = (tmp_path / "c.json.measurements.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = {"collectives", "pipelines", HOST_MEMORY}
    assert {json.loads(line)["what"] for line in lines[1:]} == kinds
    assert not [line for line in lines if "error" in json.loads(line)]
    device = found.devices["cpu"]
    assert min(device.flop_per_s["float32"], device.dispatch_s) > 0
    assert found.links[0].within
    assert f"wrote {output}" in result.stdout
    resumed = CliRunner().invoke(main, [*command[:-1], "1", "--resume"])
    assert resumed.exit_code == 0, resumed.output


def test_what_was_measured_is_drawn_beside_the_fit(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK), MadeUp(), budget_s=25)
    path = tmp_path / "here.json"
    write_calibration(found, path)
    kept_at = (tmp_path / "c.json.measurements.jsonl").rename(f"{path}.measurements.jsonl")
    asked = ["calibration", "show", str(path), "--html", str(tmp_path / "here.html")]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in kept_at.read_text(encoding="utf-8").splitlines()[1:]]
    page = (tmp_path / "here.html").read_text(encoding="utf-8")
    charts = dict(zip(re.findall("<h2>(.*?)</h2>", page), page_data(page)["charts"].values(), strict=True))
    for name in {row["probe"]["name"] for row in rows if row["what"] == "collectives"}:
        shown = charts[f"{name.replace('_', '-')} within hosts"]["data"]
        points = {(x, y) for trace in shown if trace["mode"] == "markers"
                  for x, y in zip(trace["x"], trace["y"], strict=True)}  # fmt: skip
        assert points == {(row["probe"]["num_bytes"], row["seconds"]["run_s"]) for row in rows
                          if row["probe"].get("name") == name}  # fmt: skip
        lines = [trace for trace in shown if trace["mode"] == "lines" and "fill" not in trace]
        for trace in lines:
            probe = CollectiveProbe(name, int(trace["x"][0]), 2, 1, False)
            assert trace["y"][0] == pytest.approx(predicted_s(probe, found.links[0].link, 2))
    sends = [trace for trace in charts["Sends within hosts"]["data"] if trace["name"] == "measured"]
    assert len(sends[0]["x"]) == sum(row["what"] == "pipelines" for row in rows)
    kept_at.write_text(kept_at.read_text(encoding="utf-8").replace('"run_s": ', '"run_s": -', 1), encoding="utf-8")
    result = CliRunner().invoke(main, asked)
    assert (result.exit_code, "must be a finite number above 0" in result.output) == (1, True)


def test_stops_before_all_is_measured_where_all_is_sure(tmp_path):
    bench = MadeUp(noise=0.01)
    measure(tmp_path, cluster_of(PRIOR, LINK), bench, budget_s=1e6)
    assert len(bench.ran) == len(set(bench.ran))
    collectives = [probe for probe in bench.ran if isinstance(probe, CollectiveProbe)]
    assert {probe.name for probe in collectives} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert len(collectives) < 20


def test_the_budget_ends_it(tmp_path):
    bench = MadeUp()
    measure(tmp_path, cluster_of(PRIOR, LINK, hosts=2), bench, budget_s=20.0)
    # A measurement that was begun is finished.
    assert 15 <= bench.now <= 22
    assert {place.what for place in bench.opened} == {"pipelines", "collectives", HOST_MEMORY}


def test_a_single_device_has_no_links(tmp_path):
    bench = MadeUp()
    found = measure(tmp_path, cluster_of(PRIOR, LINK, devices=1), bench)
    assert found.links == ()
    assert {place.what for place in bench.opened} == {HOST_MEMORY}
    assert found.devices["test"].dispatch_s == PRIOR.dispatch_s
