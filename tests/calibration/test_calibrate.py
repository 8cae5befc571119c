"""`alpa-dejavu calibrate`: figures recovered from made-up measurements, within a budget, resumable; and the command."""

import dataclasses
import itertools
import json
import logging
import re

import pytest
import ray
from click.testing import CliRunner

from alpa_dejavu.alpa import ray_bench
from alpa_dejavu.calibration import read_calibration, write_calibration
from alpa_dejavu.calibration._fit_devices import DeviceModel
from alpa_dejavu.calibration._fit_links import LinkModel, fit_sends, predicted_s
from alpa_dejavu.calibration._judged import Judged, stage_s
from alpa_dejavu.calibration._log_fit import ENOUGH, next_measurement
from alpa_dejavu.calibration.bench import (
    BETWEEN,
    HOST_MEMORY,
    WITHIN,
    Collective,
    Pipeline,
    Place,
)
from alpa_dejavu.calibration.calibrate import calibrate
from alpa_dejavu.calibration.measurements import Measurement
from alpa_dejavu.calibration.operators import SINGLE, Program, operators, programs, stage_programs
from alpa_dejavu.cli.main import main
from alpa_dejavu.costs.latency import AnalyticLatency
from measured_cluster import CALL_S, LINK, PRIOR, TRUE, TRUE_LINK, MadeUp, cluster_of, kept, measure, took


@pytest.mark.parametrize("hosts", [1, 2])
def test_figures_are_recovered(tmp_path, hosts):
    cluster, bench = cluster_of(PRIOR, LINK, hosts), MadeUp()
    found = measure(tmp_path, cluster, bench)
    device = found.devices["test"]
    assert device.flop_per_s["float32"] == pytest.approx(8e10, rel=0.15)
    assert device.flop_per_s["float64"] == pytest.approx(device.flop_per_s["float32"] / 2)
    assert device.memory_bytes_per_s == pytest.approx(1.8e10, rel=0.2)
    assert device.transcendental_flop / device.vector_flop_per_s == pytest.approx(60 / 2.5e9, rel=0.2)
    assert device.small_products.share == pytest.approx(0.6, rel=0.2)
    assert device.strided.bytes_per_s == pytest.approx(6e8, rel=0.25)
    assert device.dilated_flop_per_s == pytest.approx(2e10, rel=0.25)
    assert (device.dispatch_s, device.step_s) == (pytest.approx(4e-3, rel=0.1), pytest.approx(7e-3, rel=0.1))
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
    assert applied.hosts[0].device.memory_bytes_per_s == pytest.approx(device.memory_bytes_per_s)
    assert applied.links[0][0].bytes_per_s == pytest.approx(found.links[0].link.bytes_per_s)


def test_stops_before_all_is_measured_where_all_is_sure(tmp_path):
    bench = MadeUp(noise=0.01)
    measure(tmp_path, cluster_of(PRIOR, LINK), bench, budget_s=1e6)
    ran = [probe for probe in bench.ran if isinstance(probe, Program)]
    assert {probe.name for probe in ran} == {probe.name for probe in programs(PRIOR)}
    assert len(ran) == len(set(ran)) <= len(programs(PRIOR))
    collectives = [probe for probe in bench.ran if isinstance(probe, Collective)]
    assert {probe.name for probe in collectives} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert len(collectives) < 20


def test_what_was_measured_is_drawn_beside_the_fit(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK), MadeUp(), budget_s=25)
    path = tmp_path / "here.json"
    write_calibration(found, path)
    kept_at = (tmp_path / "c.json.measurements.jsonl").rename(f"{path}.measurements.jsonl")
    result = CliRunner().invoke(main, ["calibration", "show", str(path), "--plots", str(tmp_path / "pictures")])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in kept_at.read_text(encoding="utf-8").splitlines()[1:]]
    wanted = {f"program-{row['probe']['name']}-test.html" for row in rows if row["what"] == "programs"}
    collectives = {row["probe"]["name"].replace("_", "-") for row in rows if row["what"] == "collectives"}
    wanted |= {f"{name}-within-hosts.html" for name in collectives}
    assert len(wanted) > 6
    assert wanted <= {page.name for page in (tmp_path / "pictures").iterdir()}
    kept_at.write_text(kept_at.read_text(encoding="utf-8").replace('"run_s": ', '"run_s": -', 1), encoding="utf-8")
    result = CliRunner().invoke(main, ["calibration", "show", str(path), "--plots", str(tmp_path / "pictures")])
    assert (result.exit_code, "must be a finite number above 0" in result.output) == (1, True)


def test_the_rule_leaves_less_unsure_than_the_order_of_a_list():
    listed = programs(PRIOR)
    model = DeviceModel(PRIOR, listed)
    seconds = [took(program)["run_s"] for program in listed]
    chosen = {}
    while len(chosen) < 10:
        number = next_measurement(model.fit(chosen).unsure, chosen)
        chosen[number] = seconds[number]
    first = {number: seconds[number] for number in range(10)}
    assert model.fit(chosen).unsure.max() < 0.8 * model.fit(first).unsure.max()
    assert model.fit(chosen).unsure.max() < model.fit({}).unsure.max()


def test_one_wrong_measurement_hardly_counts():
    listed = programs(PRIOR)
    model = DeviceModel(PRIOR, listed)
    right = {n: took(program)["run_s"] for n, program in enumerate(listed)}
    spoilt = {n: seconds * (20.0 if n == len(listed) // 2 else 1.0) for n, seconds in right.items()}
    before, after = model.fit(right).figures, model.fit(spoilt).figures
    for name in ("memory_bytes_per_s", "vector_flop_per_s", "transcendental_flop"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=0.25)
    assert after.flop_per_s["float32"] == pytest.approx(before.flop_per_s["float32"], rel=0.25)


def test_nothing_measured_leaves_what_was_known_and_says_so(tmp_path):
    bench = MadeUp()
    found = measure(tmp_path, cluster_of(PRIOR, LINK), bench, budget_s=1e-9)
    assert len(bench.ran) <= 1
    assert found.devices["test"].flop_per_s["float32"] == pytest.approx(5e10, rel=0.1)
    assert any("programs on test: nothing was measured" in said for said in found.missing)
    assert found.device_spread["test"]["memory_bytes_per_s"] > 0.5
    with pytest.raises(ValueError, match="the budget is 0"):
        calibrate(cluster_of(PRIOR, LINK), bench, kept(tmp_path, cluster_of(PRIOR, LINK)), 0.0, "no")


def test_the_budget_ends_it(tmp_path):
    bench = MadeUp()
    measure(tmp_path, cluster_of(PRIOR, LINK, hosts=2), bench, budget_s=20.0)
    # A measurement that was begun is finished.
    assert 15 <= bench.now <= 22
    assert {place.what for place in bench.opened} == {"pipelines", "collectives", HOST_MEMORY, "programs", "stages"}


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
    cluster, bench = cluster_of(PRIOR, LINK), MadeUp(failing=("softmax", "all_to_all"))
    with caplog.at_level(logging.WARNING):
        found = measure(tmp_path, cluster, bench)
    assert "softmax" in caplog.text
    assert any("softmax" in said and "out of memory" in said for said in found.missing)
    assert found.devices["test"].memory_bytes_per_s == pytest.approx(1.8e10, rel=0.3)
    # Workers are started anew after a failure, and at most three failures of a place are taken.
    assert 2 <= bench.opened.count(Place("programs", "test")) <= 4
    whole = MadeUp()
    measure(tmp_path, cluster, whole, resume=True)
    assert any(getattr(probe, "name", "") == "softmax" for probe in whole.ran)


def test_a_single_device_has_no_links(tmp_path):
    bench = MadeUp()
    found = measure(tmp_path, cluster_of(PRIOR, LINK, devices=1), bench)
    assert found.links == ()
    assert {place.what for place in bench.opened} == {HOST_MEMORY, "programs", "stages"}
    assert found.devices["test"].dispatch_s == PRIOR.dispatch_s


def test_links_between_hosts_are_fitted_apart():
    names = "all_reduce", "all_gather"
    listed = [Collective(name, 1 << power, 4, 1, True) for name in names for power in (10, 20, 25)]
    model = LinkModel(LINK, listed, 2)
    assert model.fit({}).unsure.min() > ENOUGH
    found = model.finish({n: predicted_s(one, TRUE_LINK, 2) for n, one in enumerate(listed)})
    assert found.figures.bytes_per_s == pytest.approx(1e9, rel=0.2)
    assert found.held_out["mape"] < 0.2
    link, spread = fit_sends(LINK, [], [])
    assert link.sending == pytest.approx(LINK.sending)
    assert spread["send_bytes_per_s"] > 0.5


def test_half_a_line_is_dropped_with_a_note(tmp_path, caplog):
    cluster = cluster_of(PRIOR, LINK)
    store = kept(tmp_path, cluster)
    seconds = {"dispatch_s": 1.0, "step_s": 1.0, "send_s": 1.0}
    store.add(Measurement(Place("pipelines", WITHIN), Pipeline(4096), seconds))
    store.add(Measurement(Place("programs", "test"), Program("add", (8,)), {"run_s": 0.5}))
    whole = store.path.read_text(encoding="utf-8")
    store.path.write_text(whole + '{"what": "progr', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        again = kept(tmp_path, cluster, resume=True)
    assert "written by half" in caplog.text
    assert store.path.read_text(encoding="utf-8") == whole
    assert again.at(Place("programs", "test")) == {Program("add", (8,)): {"run_s": 0.5}}
    assert len(again) == 2


def test_a_measurement_that_is_there_twice_is_named_with_both_lines(tmp_path, caplog):
    cluster = cluster_of(PRIOR, LINK)
    store = kept(tmp_path, cluster)
    for run_s in (0.5, 0.7):
        store.add(Measurement(Place("programs", "test"), Program("add", (8,)), {"run_s": run_s}))
    with caplog.at_level(logging.WARNING):
        again = kept(tmp_path, cluster, resume=True)
    assert "line 3: measures the same as line 2" in caplog.text
    assert again.at(Place("programs", "test")) == {Program("add", (8,)): {"run_s": 0.7}}


LINE = {"what": "programs", "where": "test", "probe": {"name": "add", "sizes": [8]}, "seconds": {"run_s": 0.5}}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: this isn't JSON"),
        ("[" * 100_000, "line 2: lists in lists more than 100 deep; take the line out"),
        ("[]", "line 2: is '\\[\\]', but must be an object"),
        (LINE | {"seconds": {"run_s": -0.5}}, "run_s is -0.5, but must be a finite number above 0"),
        (LINE | {"seconds": {"run_s": float("nan")}}, "run_s is nan"),
        (LINE | {"seconds": {"run_ms": 0.5}}, "must have run_s"),
        (LINE | {"what": "stages", "seconds": {"send_s": 0.5}}, "must have run_s"),
        (LINE | {"where": "tset"}, "where is 'tset'; did you mean 'test'"),
        (LINE | {"what": "songs"}, "what is 'songs'"),
        (LINE | {"probe": {"name": "ad", "sizes": [8]}}, "there is no program 'ad'"),
        (LINE | {"probe": {"name": "add", "sizes": [8, 9]}}, "sizes \\(8, 9\\)"),
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


def test_programs_are_real_and_not_too_long():
    slow = dataclasses.replace(PRIOR, flop_per_s={"float32": 1e9})
    assert len(programs(slow)) < len(programs(PRIOR))
    half = dataclasses.replace(PRIOR, flop_per_s={**PRIOR.flop_per_s, "bfloat16": 1e14})
    assert any(program.dtype == "bfloat16" for program in programs(half))
    gradient, forward = (operators(Program("perceptron", (64, 256, 2), phase)) for phase in ("gradient", "forward"))
    assert gradient.product_flop == pytest.approx(3 * forward.product_flop, rel=0.01)
    with pytest.raises(ValueError, match="there is no program 'song'"):
        Program("song", (1,))
    with pytest.raises(ValueError, match="there is no collective"):
        Collective("send", 1, 2, 1, False)


def test_the_command_refuses_before_anything_is_started(tmp_path, monkeypatch):
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


def test_the_commands_budget_goes_by_the_clock_that_is_handed_in(tmp_path, monkeypatch):
    bench = MadeUp()
    monkeypatch.setattr(ray_bench, "ray_bench", lambda machine: (cluster_of(PRIOR, LINK, hosts=2), bench))
    command = ["calibrate", "--output", str(tmp_path / "c.json"), "--budget", "20"]
    result = CliRunner().invoke(main, command, obj=lambda: bench.now)
    assert result.exit_code == 0, result.output
    assert 15 <= bench.now <= 22


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_is_calibrated_and_the_file_is_taken(tmp_path):
    output = tmp_path / "c.json"
    command = ["calibrate", "--output", str(output), "--local", "2", "--budget", "90"]
    # A look at the clock takes a second, whatever else runs meanwhile: there is one before each measurement.
    result = CliRunner().invoke(main, command, obj=itertools.count().__next__)
    assert result.exit_code == 0, result.output
    assert not ray.is_initialized()
    found = read_calibration(output)
    lines = (tmp_path / "c.json.measurements.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = {"programs", "stages", "collectives", "pipelines", HOST_MEMORY}
    assert {json.loads(line)["what"] for line in lines[1:]} == kinds
    assert not [line for line in lines if "error" in json.loads(line)]
    device = found.devices["cpu"]
    assert min(device.flop_per_s["float32"], device.dispatch_s) > 0
    # On a machine whose probe predicts parts of models better than the fit does, that stands, and it is said.
    stands = any("these stand" in said for said in found.missing)
    assert device.origin.startswith("measured on this machine" if stands else "alpa-dejavu calibrate: ")
    assert found.links[0].within
    assert f"wrote {output}" in result.stdout
    resumed = CliRunner().invoke(main, [*command[:-1], "1", "--resume"])
    assert resumed.exit_code == 0, resumed.output


class Misleading(MadeUp):
    """Parts of models take what was known before; single operators, when they run alone, five times as long."""

    def run(self, probe):
        found = super().run(probe)
        if not isinstance(probe, Program):
            return found
        before_s = AnalyticLatency().predict(operators(probe), PRIOR).total_s + CALL_S
        return {"run_s": before_s * (5.0 if probe.name in SINGLE else 1.0)}


def test_figures_that_predict_parts_of_models_worse_than_those_before_are_not_taken(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK, devices=1), Misleading(), budget_s=40.0)
    (said,) = (said for said in found.missing if "these stand" in said)
    assert said.startswith("programs on test: fitted figures are ")
    taken = dataclasses.replace(found.devices["test"], dispatch_s=PRIOR.dispatch_s, step_s=PRIOR.step_s)
    assert taken == PRIOR
    assert found.device_spread["test"]["memory_bytes_per_s"] > 0


def test_figures_that_predict_parts_of_models_better_are_taken(tmp_path):
    bench = MadeUp()
    bench.truth = dataclasses.replace(TRUE, dispatch_s=PRIOR.dispatch_s)
    found = measure(tmp_path, cluster_of(PRIOR, LINK, devices=1), bench, budget_s=40.0)
    assert not any("these stand" in said for said in found.missing)
    assert found.devices["test"].memory_bytes_per_s != PRIOR.memory_bytes_per_s


class StagesUnlikePrograms(MadeUp):
    """Programs take other times alone than in a pipeline, where they take what was known before."""

    truth = PRIOR


def test_figures_that_predict_stages_worse_than_those_before_are_not_taken(tmp_path):
    bench = StagesUnlikePrograms()
    found = measure(tmp_path, cluster_of(PRIOR, LINK), bench)
    assert {program.name for program in bench.staged} == {"perceptron", "block", "convolution", "head"}
    assert all(program.phase == "gradient" for program in bench.staged)
    (said,) = (said for said in found.missing if "these stand" in said)
    wanted = r"programs on test: fitted figures are \d+\.\d% off on 4 stages of .* from before 0\.0%: these stand"
    assert re.fullmatch(wanted, said)
    assert found.devices["test"] == PRIOR
    (fit,) = (fit for fit in found.fits if fit.part == "stages on test")
    assert (fit.rows, fit.held_out) == (4, {"mape": 0.0})
    resumed = StagesUnlikePrograms()
    assert measure(tmp_path, cluster_of(PRIOR, LINK), resumed, resume=True).devices["test"] == PRIOR
    assert resumed.staged == []


def test_figures_that_predict_stages_better_are_taken(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK), MadeUp())
    assert not any("these stand" in said for said in found.missing)
    judged = Judged(PRIOR, found.devices["test"], dict.fromkeys(stage_programs(PRIOR), 1.0))
    assert judged.before != judged.fitted
    (fit,) = (fit for fit in found.fits if fit.part == "stages on test")
    assert fit.held_out["mape"] < 0.2
    assert Judged(PRIOR, TRUE, {}).refused == ""


def test_errors_of_stages_are_those_by_hand():
    (program, *_) = stage_programs(PRIOR)
    alone_s = AnalyticLatency().predict(operators(program), PRIOR).total_s
    assert stage_s(program, PRIOR) == pytest.approx(alone_s + 2 * PRIOR.dispatch_s)
    slower = dataclasses.replace(PRIOR, dispatch_s=PRIOR.dispatch_s + alone_s / 2)
    judged = Judged(PRIOR, slower, {program: stage_s(program, PRIOR) * 1.25})
    assert judged.before == pytest.approx(0.2)
    assert judged.fitted == pytest.approx(abs((2 * alone_s + 2e-3) / (1.25 * (alone_s + 2e-3)) - 1))
    assert "on 1 stage of pipelines, those from before 20.0%: these stand" in judged.refused


def test_figures_that_are_nearer_by_no_more_than_chance_are_not_taken():
    first, second, *_ = stage_programs(PRIOR)
    slower = PRIOR.slower(1.1)
    for factors, taken in (((1.1, 1.1), True), ((1.1, 1.01), False)):
        stages = {one: stage_s(one, PRIOR) * by for one, by in zip((first, second), factors, strict=True)}
        judged = Judged(PRIOR, slower, stages)
        assert judged.fitted < judged.before
        assert (judged.refused == "") is taken
    assert judged.refused.endswith("those from before 5.0%, which may be chance: these stand")
