import dataclasses
import json

import numpy as np
import pytest

from alpa_dejavu.costs.iteration import Deviation, Parameter, Physics, fit, load, memory_risk, save
from alpa_dejavu.costs.iteration.frameworks import (
    BandwidthFit,
    DeepSpeedIteration,
    HostKind,
    LayerProfile,
    Machine,
    MegatronIteration,
    PeakMemory,
    PipelinePlan,
    PipelineRun,
    ProfiledModel,
    RingAllReduce,
    deepspeed_columns,
)


class Line(Physics):
    """start_s + work / rate, with a deviation of each kind."""

    parameters = (Parameter("start_s", 0.1, 2.0), Parameter("rate", 1.0, 2.0))
    deviations = (Deviation("kind", {"kind": 1.0}, 0.1, 0.1),)

    def log_value(self, values, deviations, rows):
        return np.log(values["start_s"] + rows["work"] / values["rate"]) + deviations["kind"]


def lines(noise=0.02, num_kinds=8, size=200):
    rng = np.random.default_rng(0)
    rows = {"work": rng.uniform(1, 100, size), "kind": rng.integers(0, num_kinds, size) * 10.0}
    off = rng.normal(0, 0.1, num_kinds)[(rows["kind"] / 10).astype(int)]
    return rows, np.exp(np.log(0.5 + rows["work"] / 20) + off + rng.normal(0, noise, size))


def chosen(rows, where):
    return {name: column[where] for name, column in rows.items()}


def test_parameters_are_found_again():
    values = fit(Line(), *lines()).values
    assert values["rate"] == pytest.approx(20, rel=0.15)
    assert values["start_s"] == pytest.approx(0.5, rel=0.3)


def test_outliers_move_nothing():
    rows, measured = lines()
    spoiled = measured.copy()
    spoiled[::20] *= 5
    clean, robust = fit(Line(), rows, measured), fit(Line(), rows, spoiled)
    assert robust.values["rate"] == pytest.approx(clean.values["rate"], rel=0.05)


def test_the_spread_grows_for_programs_that_were_never_seen():
    rows, measured = lines()
    fitted = fit(Line(), rows, measured)
    _, seen = fitted.predict({"work": np.array([50.0]), "kind": np.array([0.0])})
    _, unseen = fitted.predict({"work": np.array([50.0]), "kind": np.array([500.0])})
    assert unseen > 2 * seen


def test_intervals_hold_on_groups_that_were_left_out():
    rows, measured = lines(num_kinds=40, size=800)
    inside = []
    for kind in np.unique(rows["kind"])[::4]:
        held = rows["kind"] == kind
        fitted = fit(Line(), chosen(rows, ~held), measured[~held], rows["kind"][~held].tolist())
        mean, spread = fitted.predict(chosen(rows, held))
        inside.append(np.abs(np.log(measured[held]) - mean) < 1.6449 * spread)
    assert 0.7 <= np.concatenate(inside).mean() <= 1.0


def test_a_model_that_is_right_is_hardly_widened():
    rows, measured = lines(num_kinds=40, size=800)
    groups = rows["kind"].tolist()
    once = fit(Line(), rows, measured, groups).widening[0.0]
    assert 0.6 < once < 1.6


def test_sources_have_noise_of_their_own():
    rows, measured = lines(noise=0.01)
    rows["source"] = (np.arange(len(measured)) % 2).astype(float)
    rng = np.random.default_rng(1)
    measured = measured * np.exp(np.where(rows["source"] > 0, rng.normal(0, 0.2, len(measured)), 0))
    noise = fit(Line(), rows, measured).noise
    assert noise[1.0] > 5 * noise[0.0]


@pytest.mark.parametrize("wrong", [[], [1.0, 0.0], [1.0, np.nan], [np.inf]])
def test_what_cant_be_measured_is_refused(wrong):
    size = len(wrong)
    with pytest.raises(ValueError, match="positive numbers"):
        fit(Line(), {"work": np.ones(size), "kind": np.zeros(size)}, np.array(wrong))


def machine():
    return Machine(312e12, 2e12, 80e9, 8, 100e9, RingAllReduce(4e-5, 2e-6, 2e11))


def gpts(**changed):
    row = {"hidden": 2048, "heads": 16, "layers": 24, "seq_len": 1024, "tp": 2, "dp": 2, "pp": 2, "micro_batch": 4}
    row |= {"num_micro_batches": 8} | changed
    size = max(np.size(value) for value in row.values())
    rows = {name: np.broadcast_to(np.asarray(value, float), size) for name, value in row.items()}
    return rows | {f"log_{name}": np.log(rows[name]) for name in ("hidden", "tp", "dp", "micro_batch")}


def prior(physics, rows, **changed):
    values = {parameter.name: parameter.start for parameter in physics.parameters} | changed
    size = len(next(iter(rows.values())))
    none = {kind.name: np.zeros(size) for kind in physics.deviations}
    return np.exp(physics.log_value(values, none, rows))


@pytest.mark.parametrize("name", ["hidden", "layers", "num_micro_batches", "micro_batch"])
def test_more_work_takes_longer(name):
    seconds = prior(
        MegatronIteration(machine()), gpts(**{name: np.array([8, 16, 32]) * (256 if name == "hidden" else 1)})
    )
    assert (np.diff(seconds) > 0).all()


def test_megatron_is_affine_in_the_number_of_micro_batches():
    seconds = prior(MegatronIteration(machine()), gpts(num_micro_batches=np.array([4, 8, 12, 16])))
    assert np.diff(seconds, 2) == pytest.approx(0, abs=1e-9)


def test_layers_are_computed_again_only_where_memory_is_too_small():
    model = MegatronIteration(machine())
    small, large = model._recomputed(gpts()), model._recomputed(gpts(hidden=12288, layers=96, heads=96, tp=8))
    assert small == pytest.approx(1, abs=1e-3)
    assert large > 1.3


def test_many_hosts_pay_for_links_between_them():
    one, many = (gpts(tp=8, dp=dp, pp=1) for dp in (1, 8))
    model = MegatronIteration(machine())
    assert prior(model, many) > prior(model, one) * 1.03


def profiled(layers=10):
    times = {(device, tp): np.full(layers, 4e-3) for device in ("t4", "v100") for tp in (1, 2, 4)}
    plain = np.ones(layers)
    return ProfiledModel(times, plain > 0, plain * 1e7, plain * 0, (), plain * 1e6)


G4DN, P3 = HostKind("g4dn", "t4", 6e9, 6e9), HostKind("p3", "v100", 2e10, 1.25e9)


def deepspeed(plans, cluster):
    columns = deepspeed_columns(
        plans, [profiled()] * len(plans), [cluster] * len(plans), ("t4", "v100"), ("g4dn", "p3")
    )
    return columns | {"source": np.zeros(len(plans))}


def test_a_mixed_cluster_knows_whose_links_and_devices_a_stage_has():
    rows = deepspeed([PipelinePlan(1, 4, 1, 32, (0, 3, 5, 8, 10))], [P3, P3, P3, G4DN])
    assert rows["present"][0].tolist() == [[0, 1], [0, 1], [0, 1], [1, 0]]
    assert rows["ring_crosses"][0].tolist() == [0, 0, 0, 0]
    assert rows["send_crosses"][0].tolist() == [1, 1, 1, 0]
    assert rows["send_bytes_per_s"][0, 0] == pytest.approx(1.25e9 / 4)
    assert rows["host"][0].tolist() == [1, 1, 1, 0]


def test_a_ring_over_all_hosts_goes_over_the_slowest_link():
    rows = deepspeed([PipelinePlan(2, 8, 1, 32, (0, 10))], [P3, P3, P3, G4DN])
    assert rows["ring_bytes_per_s"][0, 0] == pytest.approx(1.25e9 / 2)


def test_a_slow_host_slows_the_iteration():
    plan = [PipelinePlan(1, 16, 1, 32, (0, 10))]
    physics = DeepSpeedIteration(("t4", "v100"), ("g4dn", "p3"))
    fast, slow = (prior(physics, deepspeed(plan, c), **{"speed:v100": 3.0}) for c in ([P3] * 4, [P3, P3, P3, G4DN]))
    assert slow > fast


def test_plans_of_several_depths_are_padded():
    rows = deepspeed([PipelinePlan(1, 16, 1, 32, (0, 10)), PipelinePlan(1, 4, 1, 32, (0, 3, 5, 8, 10))], [P3] * 4)
    assert rows["blocks"].shape == (2, 4)
    assert np.isfinite(prior(DeepSpeedIteration(("t4", "v100"), ("g4dn", "p3")), rows)).all()


def test_a_plan_for_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match="needs 32 devices"):
        deepspeed([PipelinePlan(2, 16, 1, 32, (0, 10))], [P3] * 4)


def pipelines(size=30):
    rng = np.random.default_rng(0)
    stages = {name: rng.uniform(0.5, 2, (size, 3)) for name in ("device_s", "blocks", "send_s", "ring_s")}
    stages |= {name: rng.uniform(1e9, 4e9, (size, 3)) for name in ("ring_bytes", "parameter_bytes", "activation_bytes")}
    stages |= {"in_flight": np.broadcast_to([3.0, 2.0, 1.0], (size, 3)), "logit_bytes": np.zeros((size, 3))}
    plain = {name: np.ones(size) for name in ("log_micro_batch", "log_pp", "model", "source")}
    return stages | plain | {"num_micro_batches": np.full(size, 8.0), "dp": np.full(size, 2.0)}


def peaks(size):
    rows = pipelines(size)
    return fit(PeakMemory(), rows, prior(PeakMemory(), rows, states_per_parameter=5.0), list(range(size))), rows


def test_kinds_of_memory_add_up_to_the_peak():
    rows = pipelines()
    values = {parameter.name: parameter.start for parameter in PeakMemory.parameters}
    whole = sum(PeakMemory().by_kind(values, rows).values()).max(axis=1)
    assert prior(PeakMemory(), rows) == pytest.approx(whole)


def test_more_micro_batches_take_a_pipeline_longer():
    rows = pipelines()
    more = {**rows, "num_micro_batches": rows["num_micro_batches"] + 1}
    assert (prior(PipelineRun(), more) > prior(PipelineRun(), rows)).all()


def test_few_residuals_say_so_and_ask_for_more_memory():
    (few, rows), (many, _) = peaks(30), peaks(120)
    unknown, known = (memory_risk(each, rows, 80e9) for each in (few, many))
    assert not unknown.is_known
    assert "30 residuals in 30 groups are too few" in unknown.note
    assert known.is_known
    assert "too few" not in known.note
    alike = dataclasses.replace(many, num_measured=30)
    assert (memory_risk(alike, rows, 80e9).needed_bytes > known.needed_bytes).all()


def test_a_plan_fits_where_its_risk_is_small_enough():
    peak, rows = peaks(120)
    needed = memory_risk(peak, rows, 80e9).needed_bytes
    assert memory_risk(peak, rows, needed * 1.001).fits.all()
    assert not memory_risk(peak, rows, needed * 0.999).fits.any()


@pytest.mark.parametrize("risk", [0.0, 0.5, -1.0])
def test_a_risk_that_is_none_is_refused(risk):
    with pytest.raises(ValueError, match="risk is"):
        memory_risk(*peaks(30), 80e9, risk)


def test_a_ring_is_found_again():
    sizes, devices = (each.ravel() for each in np.meshgrid(2.0 ** np.arange(16, 31), [2.0, 4.0, 8.0]))
    truth = RingAllReduce(5e-5, 3e-6, 1.5e11)
    found = RingAllReduce.fit(sizes, devices, truth.seconds(sizes, devices))
    assert found.bytes_per_s == pytest.approx(1.5e11, rel=0.05)
    assert found.seconds(np.array([1e6]), np.array([1.0])) == 0


def test_a_bandwidth_fit_that_is_none_is_refused():
    with pytest.raises(ValueError, match="largest bytes/s"):
        BandwidthFit.of([1.0, 2.0])


def test_draws_have_the_mean_and_spread_of_the_prediction():
    rows, measured = lines()
    fitted = fit(Line(), rows, measured, rows["kind"].tolist())
    asked = {"work": np.array([20.0, 50.0, 90.0]), "kind": np.array([0.0, 10.0, 500.0])}
    drawn = fitted.draw(asked, 4000, np.random.default_rng(0))
    mean, spread = fitted.predict(asked)
    noise = fitted.noise[0.0] * fitted.widening[0.0]
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert drawn.std(axis=0) == pytest.approx(np.sqrt(spread**2 - noise**2), rel=0.1)


def test_rows_of_one_unseen_program_are_off_together():
    fitted = fit(Line(), *lines())
    asked = {"work": np.array([50.0, 60.0, 50.0]), "kind": np.array([500.0, 500.0, 900.0])}
    off = np.corrcoef(fitted.draw(asked, 2000, np.random.default_rng(0)).T)
    assert off[0, 1] > 0.95
    assert off[0, 2] < 0.3


def test_a_fitted_model_is_the_same_after_it_was_kept(tmp_path):
    rows, measured = lines()
    fitted = fit(Line(), rows, measured, rows["kind"].tolist())
    save(fitted, tmp_path / "line.json", "made up", {"mape": 0.02})
    again = load(tmp_path / "line.json", Line())
    for ours, theirs in zip(fitted.predict(rows), again.predict(rows), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    save(again, tmp_path / "again.json", "made up", {"mape": 0.02})
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "line.json").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda content: content.update(version=0), "version 0"),
        (lambda content: content.update(physics="Other"), "fitted for Other"),
        (lambda content: content.pop("covariance"), "lacks a part"),
        (lambda content: content["estimate"].pop(), "finite numbers"),
    ],
)
def test_a_broken_model_is_refused(tmp_path, spoil, says):
    path = tmp_path / "line.json"
    save(fit(Line(), *lines()), path, "made up", {})
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=says):
        load(path, Line())


def layers(**changed):
    row = {"gpu": 0.0, "flop": 1e12, "moved_bytes": 1e8, "reduced_s": 0.0, "log_hidden": 7.0, "log_tp": 0.0}
    row |= {"log_micro_batch": 0.0} | changed
    return {name: np.array([value], float) for name, value in row.items()}


def test_a_small_layer_takes_its_launch():
    seconds = prior(LayerProfile({"a": 1e12, "b": 2e12}), layers(flop=1e3, moved_bytes=1.0))
    assert seconds == pytest.approx(2e-3)


def test_a_gpu_that_was_measured_with_another_model_tells_of_this_one():
    physics, rng = LayerProfile({"a": 1e12, "b": 1e12}), np.random.default_rng(0)
    speed = {"flop_per_s:a": 1e13, "flop_per_s:b": 4e13}
    known = [layers(gpu=gpu, flop=flop, log_hidden=h) for gpu, h in ((0, 7), (1, 7), (0, 9)) for flop in (1e12, 4e12)]
    rows = {name: np.concatenate([each[name] for each in known]) for name in known[0]}
    measured = prior(physics, rows, **speed) * np.exp(rng.normal(0, 0.01, len(known)))
    asked = layers(gpu=1, flop=2e12, log_hidden=9)
    mean, _ = fit(physics, rows, measured).predict(asked)
    assert np.exp(mean) == pytest.approx(prior(physics, asked, **speed), rel=0.15)
