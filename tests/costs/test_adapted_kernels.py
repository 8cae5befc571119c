"""A model adapted to a GPU by a few measurements: it learns what the GPU deviates by, and knows how well."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import few_shot
from alpa_dejavu.costs.latency.learned import (
    AdaptedKernels,
    DataSheet,
    Deviations,
    KernelModel,
    Kernels,
    LearnedLatency,
    measure_next,
)
from alpa_dejavu.problem import Cluster, Host, Operator, Operators, Run
from alpa_dejavu.testing import check_latency_model, example_cluster
from made_up import kernel_rows
from models import chain, planned, space

SHEETS = {
    "small": DataSheet(5e12, 2e11, 40, 2e6),
    "middle": DataSheet(8e12, 4e11, 60, 4e6),
    "large": DataSheet(1.5e13, 9e11, 80, 6e6),
    "new": DataSheet(1e13, 6e11, 70, 5e6),
}


def made_up(gpu, count, seed, **slower):
    return kernel_rows(gpu, SHEETS, count, seed, **slower)


def split(rows):
    return Kernels.of(rows, SHEETS), rows["latency_s"].to_numpy()


@pytest.fixture(scope="module")
def fitted():
    """A model, and how the GPUs that it was fitted to deviate when left out."""
    rows = pd.concat([made_up(gpu, 250, seed) for seed, gpu in enumerate(("small", "middle", "large"))])
    kernels, seconds = split(rows)
    model = KernelModel().fit(kernels, seconds)
    return model, Deviations.fit(model, kernels, model.left_out_errors)


NEW = made_up("new", 400, 9, products=2.0, others=1.6)
POOL, HELD = split(NEW.iloc[:200]), split(NEW.iloc[200:])


def error(predicted, seconds):
    return float(np.mean(np.abs(predicted.mean / seconds - 1)))


def test_without_measurements_it_is_the_model(fitted):
    model, deviations = fitted
    adapted = AdaptedKernels(deviations).fit(model, POOL[0].take(np.arange(0)), [])
    for name in ("mean", "lower", "upper", "in_domain"):
        assert (getattr(adapted.predict(HELD[0]), name) == getattr(model.predict(HELD[0]), name)).all()


def test_a_few_measurements_bring_the_error_down(fitted):
    model, _ = fitted
    before = error(model.predict(HELD[0]), HELD[1])
    errors = []
    for count in (10, 50, 200):
        adapted = AdaptedKernels().fit(model, POOL[0].take(np.arange(count)), POOL[1][:count])
        errors.append(error(adapted.predict(HELD[0]), HELD[1]))
    assert before > errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * before


def test_intervals_are_narrower_where_more_is_known_and_wider_where_measurements_miss_each_other(fitted):
    model, _ = fitted

    def widths(seconds):
        predicted = AdaptedKernels().fit(model, POOL[0], seconds).predict(POOL[0])
        assert (predicted.lower <= predicted.mean).all()
        assert (predicted.mean <= predicted.upper).all()
        return np.log(predicted.upper / predicted.lower)

    base = model.predict(POOL[0])
    agreeing, scattered = (
        widths(base.mean * np.exp(np.random.default_rng(0).normal(0, scale, 200))) for scale in (0.02, 0.5)
    )
    assert (agreeing < np.log(base.upper / base.lower)).all()
    assert (scattered > 1.3 * agreeing).all()


def test_a_broken_measurement_does_not_pull_the_others(fitted):
    model, _ = fitted
    sound = AdaptedKernels().fit(model, *POOL).predict(HELD[0])
    seconds = POOL[1].copy()
    seconds[::40] *= 30
    broken = AdaptedKernels().fit(model, POOL[0], seconds).predict(HELD[0])
    assert np.median(np.abs(np.log(broken.mean / sound.mean))) < 0.05


def test_one_measurement_moves_its_like_the_most(fitted):
    model, _ = fitted
    product = int(np.argmax(np.where(POOL[0].op == "bmm", POOL[0].flop, 0)))
    one = np.array([product])
    base = model.predict(POOL[0]).mean
    adapted = AdaptedKernels().fit(model, POOL[0].take(one), 2 * base[one]).predict(POOL[0])
    moved = np.log(adapted.mean / base)
    assert moved.min() > 0
    assert moved.argmax() == product
    assert moved[product] < np.log(2)
    assert moved[POOL[0].kind == "product"].mean() > moved[POOL[0].kind == "map"].mean()


DEVICE = dataclasses.replace(
    example_cluster().hosts[0].device,
    name="new",
    flop_per_s={"float32": 1e13},
    vector_flop_per_s=1e13,
    memory_bytes_per_s=6e11,
)
PRODUCT = Operator(
    "dot", "dot_general", ((2048, 2048),) * 2, ((2048, 2048),), "float32", 2.0 * 2048**3, 0, 3.4e7, 1.7e7
)
ADD = Operator("elementwise", "add", ((4096, 2048),) * 2, ((4096, 2048),), "float32", 8.4e6, 0, 6.7e7, 3.4e7)
SMALL = Operator("elementwise", "add", ((64,),) * 2, ((64,),), "float32", 64.0, 0, 512.0, 256.0)
OPERATORS = Operators.of([PRODUCT, ADD, SMALL])


def test_a_planner_takes_it_as_it_takes_the_model(fitted):
    model, _ = fitted
    adapted = LearnedLatency(AdaptedKernels().fit(model, *POOL), {"new": SHEETS["new"]})
    check_latency_model(adapted)
    before, after = (one.predict(OPERATORS, DEVICE) for one in (LearnedLatency(model, SHEETS), adapted))
    ratio = (after.mean_s - DEVICE.kernel_s) / np.maximum(before.mean_s - DEVICE.kernel_s, 1e-9)
    assert ratio[0] == pytest.approx(2.0, rel=0.3)
    # What streams does so in one row, which is far from the rows that were measured: it has its kind in common alone.
    assert 1.1 < ratio[1] < 1.8
    assert (after.spread_s[:2] / after.mean_s[:2] < before.spread_s[:2] / before.mean_s[:2]).all()
    assert adapted.in_domain(OPERATORS, DEVICE).all()
    stages = chain(4, exchanged=())
    layers = tuple(dataclasses.replace(layer, forward=OPERATORS, backward=OPERATORS) for layer in stages.layers)
    one = example_cluster(1)
    cluster = Cluster("new", (Host("one", DEVICE, 4),), one.links)
    made = [
        planned(dataclasses.replace(stages, layers=layers), cluster, space(), Run(4), latency=latency).plan
        for latency in (LearnedLatency(model, SHEETS), adapted)
    ]
    assert made[1].step_s / made[0].step_s == pytest.approx(1.9, rel=0.3)


def test_a_slow_host_is_no_work_of_the_device(fitted):
    model, _ = fitted
    slow = AdaptedKernels().fit(model, POOL[0], 1.5 * model.predict(POOL[0]).mean)
    assert slow.floor_s(POOL[0]) / model.floor_s(POOL[0]) == pytest.approx(1.5, rel=0.05)
    before, after = (
        LearnedLatency(one, {"new": SHEETS["new"]}).predict(OPERATORS, DEVICE).mean_s for one in (model, slow)
    )
    assert after[2] - before[2] < 0.2 * model.floor_s(POOL[0]).min()


def test_what_kernels_have_in_common_gets_known_first(fitted):
    model, _ = fitted
    shares = [
        AdaptedKernels().fit(model, POOL[0].take(np.arange(count)), POOL[1][:count]).common_variance["product"]
        for count in (0, 3, 30, 200)
    ]
    assert shares[0] == model.common_variance["product"]
    assert 1 > shares[0] > shares[1] > shares[2] > shares[3] >= 0


def test_one_gpus_deviations_are_not_told_of_others(fitted):
    model, _ = fitted
    with pytest.raises(ValueError, match=r"adapted to one GPU, but sheets has \['large', 'middle'"):
        LearnedLatency(AdaptedKernels().fit(model, *POOL), SHEETS)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(1e-4, 0.1), min_size=6, max_size=6), st.floats(0.3, 5.0))
def test_any_variances_make_a_covariance(fitted, variances, length):
    model, _ = fitted
    deviations = Deviations(*variances, length)
    some = POOL[0].take(np.arange(0, 200, 8))
    whole = deviations.covariance(model, some, some)
    np.testing.assert_allclose(whole, whole.T)
    np.testing.assert_allclose(np.diag(whole), deviations.variance(model, some))
    assert np.linalg.eigvalsh(whole).min() > -1e-9


def test_what_gpus_differ_in_is_found(fitted):
    model, _ = fitted
    kernels = POOL[0]
    rng = np.random.default_rng(3)
    columns = {f.name: np.concatenate([getattr(kernels, f.name)] * 6) for f in dataclasses.fields(kernels)}
    columns["gpu"] = np.repeat(np.arange(6), len(kernels))
    whole = rng.normal(0, 0.3, 6)[columns["gpu"]]
    errors = whole + rng.normal(0, 0.02, len(whole))
    found = Deviations.fit(model, Kernels(**columns), errors)
    assert found.whole > 4 * Deviations().whole
    assert found.noise < Deviations().noise
    assert found.whole > max(found.kind, found.op, found.shape, found.launch)


def test_what_is_measured_next_is_not_beside_what_was(fitted):
    model, deviations = fitted
    doubled = {f.name: np.tile(getattr(POOL[0], f.name)[:30], 2) for f in dataclasses.fields(POOL[0])}
    twins = Kernels(**doubled)
    chosen = measure_next(Deviations(noise=1e-4), model, twins, 20)
    assert len(set(chosen.tolist())) == 20
    assert len(set((chosen % 30).tolist())) > 15
    assert len(set(twins.kind[chosen].tolist())) == 3
    known = twins.take(chosen[:5])
    rest = measure_next(Deviations(noise=1e-4), model, twins, 15, known)
    assert set((rest % 30).tolist()) & set((chosen[5:] % 30).tolist())
    assert not set((rest[:3] % 30).tolist()) & set((chosen[:5] % 30).tolist())
    assert len(measure_next(deviations, model, twins, 1000)) == 60


@pytest.mark.parametrize(
    ("gpus", "seconds", "said"),
    [
        (["new", "small"], [1.0, 1.0], "they ran on 2 GPUs"),
        (["new", "new"], [1.0, np.nan], "2 finite numbers above zero"),
        (["new", "new"], [1.0], "2 finite numbers above zero"),
    ],
)
def test_what_cannot_be_is_refused(fitted, gpus, seconds, said):
    rows = {"op": ["relu"] * 2, "gpu": gpus, "batch": [8, 8], "n": [64, 64], "m": [1, 1], "k": [1, 1]}
    with pytest.raises(ValueError, match=said):
        AdaptedKernels().fit(fitted[0], Kernels.of(rows, SHEETS), seconds)


def _folder(tmp_path, gpus):
    folder = tmp_path / "neusight-kernels"
    folder.mkdir()
    names = ("fp32_flop_per_s", "memory_bandwidth_bytes_per_s", "num_sm", "l2_cache_bytes")
    sheets = {gpu: dict(zip(names, dataclasses.astuple(SHEETS[gpu])[:4], strict=True)) for gpu in gpus}
    (folder / "gpus.json").write_text(json.dumps(sheets))
    rows = pd.concat([made_up(gpu, 80, n, products=1 + 0.2 * n) for n, gpu in enumerate(gpus)])
    rows.to_csv(folder / "kernels.csv", index=False)
    return tmp_path


def test_the_curve_of_each_gpu_is_written_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(few_shot, "COUNTS", (0, 10, 30))
    folder, out, plots = _folder(tmp_path, ["small", "middle", "large"]), tmp_path / "out.json", tmp_path / "plots"
    given = ["--train", str(folder), "--json", str(out), "--plots", str(plots), "--seeds", "2"]
    assert few_shot.main(given) == 0
    result = json.loads(out.read_text())
    assert (result["version"], result["counts"], result["seeds"]) == (1, [0, 10, 30], 2)
    assert set(result["gpus"]) == {"small", "middle", "large"}
    for curves in [*result["gpus"].values(), result["mean"]]:
        assert curves["rule"]["0"] == pytest.approx(curves["random"]["0"])
        assert set(curves["rule"]["30"]) == {"median_ape", "mape", "coverage_90", "width_90"}
    assert result["gpus"]["small"]["scored"] == 40
    assert result["mean"]["rule"]["30"]["mape"] < result["mean"]["rule"]["0"]["mape"]
    assert "few_shot.html" in {path.name for path in plots.iterdir()}
    assert "30 measured" in capsys.readouterr().out


@pytest.mark.parametrize(("gpus", "said"), [(["small", "large"], "of three or more"), ([], "neusight-kernels")])
def test_what_has_no_curve_is_named(tmp_path, capsys, gpus, said):
    folder = _folder(tmp_path, gpus) if gpus else tmp_path
    assert few_shot.main(["--train", str(folder), "--json", str(tmp_path / "out.json")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
