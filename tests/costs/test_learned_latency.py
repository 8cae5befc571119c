"""Learned kernels: recovered from made-up GPUs, sure where they should be, and sound as a latency model."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.costs.latency.learned import (
    UNMEASURED_DTYPE,
    UNMEASURED_KIND,
    DataSheet,
    KernelModel,
    Kernels,
    LearnedLatency,
    ProductCurve,
    data_sheets,
)
from alpa_dejavu.problem import Operator, Operators
from alpa_dejavu.testing import check_latency_model, example_cluster
from made_up import kernel_rows

SHEETS = {
    "small": DataSheet(5e12, 2e11, 40, 2e6),
    "middle": DataSheet(8e12, 4e11, 60, 4e6),
    "large": DataSheet(1.5e13, 9e11, 80, 6e6),
    "example": DataSheet(1e12, 1e11, 16, 2e6),
}
SEEN = ("small", "middle", "large")


def _made_up(gpu: str, count: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Kernels and their seconds."""
    rows = kernel_rows(gpu, SHEETS, count, seed)
    return rows, rows.pop("latency_s").to_numpy()


@pytest.fixture(scope="module")
def model() -> KernelModel:
    parts = [_made_up(gpu, 300, seed) for seed, gpu in enumerate(SEEN)]
    rows = pd.concat([part for part, _ in parts], ignore_index=True)
    return KernelModel().fit(Kernels.of(rows, SHEETS), np.concatenate([seconds for _, seconds in parts]))


def test_predicts_a_gpu_that_it_never_saw(model):
    rows, seconds = _made_up("example", 200, 9)
    predicted = model.predict(Kernels.of(rows, SHEETS))
    error = np.abs(predicted.mean / seconds - 1)
    assert np.median(error) < 0.1
    assert (predicted.lower <= predicted.mean).all()
    assert (predicted.mean <= predicted.upper).all()
    assert ((seconds >= predicted.lower) & (seconds <= predicted.upper)).mean() > 0.6


def test_says_what_it_was_not_fitted_on(model):
    rows = {"op": ["relu", "sort", "relu"], "gpu": ["small"] * 3, "batch": [8, 8, 1e9], "n": [64, 64, 1e6]}
    kernels = Kernels.of({**rows, "m": [1] * 3, "k": [1] * 3}, SHEETS)
    assert model.predict(kernels).in_domain.tolist() == [True, False, False]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 20), st.floats(0.1, 3), st.sampled_from(["relu", "add", "softmax", "unheard-of"]))
def test_longer_rows_take_no_less(model, size, more, op):
    lengths = np.exp(size) + 1, np.exp(size + more) + 1
    rows = {"op": [op] * 2, "gpu": ["middle"] * 2, "batch": [64] * 2, "m": [1] * 2, "n": lengths, "k": [1] * 2}
    short, long = model.predict(Kernels.of(rows, SHEETS)).mean
    assert short <= long * (1 + 1e-9)


def test_conforms(model):
    check_latency_model(LearnedLatency(model, SHEETS))
    check_latency_model(LearnedLatency(model, {}))


def _operators() -> Operators:
    product = Operator(
        "dot", "dot_general", ((512, 512), (512, 512)), ((512, 512),), "float32", 2.0 * 512**3, 0, 2e6, 1e6
    )
    add = Operator("elementwise", "add", ((1024, 1024),) * 2, ((1024, 1024),), "float32", 1e6, 0, 8e6, 4e6)
    return Operators.of([product, product, add])


def test_operators_are_sure_where_the_device_is_known(model):
    device = example_cluster().hosts[0].device
    learned = LearnedLatency(model, SHEETS)
    assert learned.in_domain(_operators(), device).tolist() == [True] * 3
    stranger = dataclasses.replace(device, name="stranger")
    assert learned.in_domain(_operators(), stranger).tolist() == [False] * 3
    assert (learned.predict(_operators(), stranger).spread_s > learned.predict(_operators(), device).spread_s).all()


def test_a_convolution_is_a_product_of_a_kind_that_was_not_measured(model):
    device = dataclasses.replace(example_cluster().hosts[0].device, vector_flop_per_s=1e13)
    learned = LearnedLatency(model, SHEETS)
    flop, traffic = 2.0 * 8 * 32 * 32 * 256 * 9 * 128, (4e6, 8e6)
    inputs, result = ((8, 32, 32, 128), (3, 3, 128, 256)), (8, 32, 32, 256)
    image = Operator("conv", "conv_general_dilated", inputs, (result,), "float32", flop, 0, *traffic)
    sizes = ((8192, 1152), (1152, 256))
    product = Operator("dot", "dot_general", sizes, ((8192, 256),), "float32", flop, 0, *traffic)
    both = Operators.of([image, product])
    predicted = learned.predict(both, device)
    assert predicted.mean_s[0] == predicted.mean_s[1]
    sigma = np.log1p(predicted.spread_s / predicted.mean_s)
    assert sigma[0] == pytest.approx(max(np.hypot(*UNMEASURED_KIND), sigma[1]))
    common, own = UNMEASURED_KIND
    shares = learned.common_share(both, device)
    assert shares == pytest.approx([common**2 / (common**2 + own**2), model.common_variance["product"]])


def test_products_on_tensor_cores_that_were_not_measured_are_less_sure(model):
    device = example_cluster().hosts[0].device
    device = dataclasses.replace(device, vector_flop_per_s=1e13, flop_per_s={"float32": 1e13, "float16": 8e13})
    half = Operators.of([dataclasses.replace(_operators().records[0], dtype="float16")])
    curve = ProductCurve(0.0, 0.0, 0.0, 1e9, 1e12)
    unknown = LearnedLatency(model, SHEETS)
    known = LearnedLatency(model, SHEETS, {device.name: {"float16": curve}})
    found = [one.predict(half, device) for one in (known, unknown)]
    before, after = (np.log1p(one.spread_s / one.mean_s) for one in found)
    assert after == pytest.approx(np.hypot(before, UNMEASURED_DTYPE))
    own = [(1 - one.common_share(half, device)) * sigma**2 for one, sigma in ((known, before), (unknown, after))]
    assert own[0] == pytest.approx(own[1])


def test_draws_of_one_class_go_together(model):
    device = example_cluster().hosts[0].device
    learned = LearnedLatency(model, SHEETS)
    drawn = np.log(learned.draws(_operators(), device, 4000, np.random.default_rng(0)))
    together = np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]
    assert together == pytest.approx(model.common_variance["product"], abs=0.06)
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 2])[0, 1]) < 0.06
    again = learned.draws(_operators(), device, 4000, np.random.default_rng(0))
    assert (np.log(again) == drawn).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"gpu": ["unknown"]}, "no data sheet of 'unknown'"), ({"n": [0]}, "sizes are at least 1")],
)
def test_kernels_are_checked(change, said):
    rows = {"op": ["relu"], "gpu": ["small"], "batch": [1], "m": [1], "n": [1], "k": [1]}
    with pytest.raises(ValueError, match=said):
        Kernels.of({**rows, **change}, SHEETS)


@pytest.mark.parametrize("seconds", [[np.nan], [-1.0], [1.0, 2.0]])
def test_seconds_are_checked(seconds):
    rows = {"op": ["relu"], "gpu": ["small"], "batch": [1], "m": [1], "n": [1], "k": [1]}
    with pytest.raises(ValueError, match="1 finite numbers above zero"):
        KernelModel().fit(Kernels.of(rows, SHEETS), seconds)


def test_power_limits_the_rate():
    figures = {"fp32_flop_per_s": 8e12, "memory_bandwidth_bytes_per_s": 3e11, "num_sm": 40, "l2_cache_bytes": 4e6}
    sheets = data_sheets({"t4": figures, "made-up": figures})
    assert sheets["t4"].sustained_flop_per_s < 0.7 * sheets["made-up"].sustained_flop_per_s
    assert sheets["made-up"].sustained_flop_per_s == 8e12
    with pytest.raises(ValueError, match=r"made-up: num_sm is 0"):
        data_sheets({"made-up": {**figures, "num_sm": 0}})


def test_products_of_a_generation_are_alike():
    sizes = ("small", "large", "example")
    sheets = {
        f"{size} {process}": dataclasses.replace(SHEETS[size], process_nm=process, power_w=1e4)
        for size in sizes
        for process in (16.0, 7.0, None)
    }
    slower = {"16.0": 3.0, "7.0": 1.0}
    seen = pd.concat([
        kernel_rows(f"{size} {process}", sheets, 200, 3, products=times)
        for size in sizes[:2]
        for process, times in slower.items()
    ])  # fmt: skip
    model = KernelModel().fit(Kernels.of(seen, sheets), seen["latency_s"])
    asked = kernel_rows("example None", sheets, 100, 4).query("op == 'bmm'")
    found = {
        process: np.median(model.predict(Kernels.of(asked.assign(gpu=f"example {process}"), sheets)).mean)
        for process in ("16.0", "7.0", "None")
    }
    # Tiles, which know nothing of generations, count as well: not all of the 3 times is found.
    assert found["16.0"] / found["7.0"] > 1.5
    assert found["7.0"] < found["None"] < found["16.0"]
