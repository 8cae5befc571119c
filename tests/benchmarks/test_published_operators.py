"""Measured kernels beside the models': exact where these made the measurements, and told where a file is broken."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

import build_kernels
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.kernels import (
    AttentionSizes,
    ExpertFigures,
    attention_seconds,
    figures_of,
    kernel_figures,
    product_seconds,
)
from alpa_dejavu.problem import FusedAttention
from published._experts import experts_seconds, tokens_of_fullest
from published._kernel_fit import Kernels, Prior, fit
from published._operators import KINDS, fitted, judged_operators, training

NAMES = {"h100_sxm": "H100-SXM-80GB", "a100_sxm": "A100-SXM-80GB", "h200_sxm": "H200-SXM-141GB"}
FIGURES = kernel_figures()


def columns(table, *names):
    return [table[name].to_numpy(float) for name in names]


def products(gpu, count, rng):
    table = pd.DataFrame({name: 2 ** rng.integers(7, 14, count) for name in "mnk"})
    sizes = np.stack([np.ones(count), *columns(table, "m", "n", "k")], axis=1)
    sheet = gpu_of(NAMES[gpu])
    seconds = product_seconds(sheet, "bfloat16", FIGURES.products["half"].of(sheet), sizes)
    return table.assign(gpu=gpu, library="made up", dtype="bfloat16", time_s=seconds)


def attention(gpu, count, rng):
    heads = 2 ** rng.integers(2, 7, count)
    table = pd.DataFrame(
        {"causal": 1, "batch": 2 ** rng.integers(0, 4, count), "tokens": 2 ** rng.integers(9, 14, count)}
    )
    table = table.assign(heads=heads, kv_heads=heads // 4, head_dim=rng.choice([64, 128], count))
    taken = columns(table, "batch", "tokens", "tokens", "heads", "kv_heads", "head_dim")
    sheet = gpu_of(NAMES[gpu])
    seconds = attention_seconds(
        sheet, FIGURES.attention.of(sheet), AttentionSizes(*taken), FusedAttention(), prepare=True
    )
    return table.assign(gpu=gpu, library="made up", dtype="bfloat16", time_s=seconds)


def experts(gpu, count, rng):
    table = pd.DataFrame({"tokens": 2 ** rng.integers(9, 14, count), "hidden": 4096, "ffn": 1536, "top_k": 8})
    table = table.assign(experts=128, expert_tp=1, expert_parallel=2 ** rng.integers(0, 4, count))
    table = table.assign(load=rng.choice(["balanced", "power_law_1.2"], count))
    sheet = gpu_of(NAMES[gpu])
    parts = FIGURES.grouped["half"], FIGURES.products["half"], FIGURES.streams
    figures, seconds = ExpertFigures(*(part.of(sheet) for part in parts)), []
    for row in table.itertuples():
        exponent = 1.2 if row.load != "balanced" else 0.0
        dealt = tokens_of_fullest(row.tokens, row.top_k, row.experts, row.expert_parallel, exponent)
        sizes = (np.array([float(each)]) for each in (row.tokens, row.hidden, row.ffn))
        seconds.append(experts_seconds(sheet, "bfloat16", figures, dealt, *sizes)[0])
    return table.assign(gpu=gpu, library="made up", dtype="bfloat16", time_s=seconds)


MADE = {"gemm.csv": products, "attention.csv": attention, "moe.csv": experts}


def write(folder, gpus, count=24):
    rng = np.random.default_rng(0)
    for name, made in MADE.items():
        pd.concat([made(gpu, count, rng) for gpu in gpus]).to_csv(folder / name, index=False)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("operators"), ["h100_sxm", "a100_sxm"])


def test_what_the_models_made_they_predict(folder):
    found = judged_operators(folder)
    assert set(found) == set(KINDS)
    for figures in found.values():
        assert figures["rows"] == 48
        assert figures["median_error"] == pytest.approx(0, abs=1e-9)
        assert figures["within_20"] == figures["inside"] == 1
        assert figures["interval_factor"] > 1
        assert figures["sheets"] > 0.1
        assert set(figures["by_source"]) == {"H100-SXM-80GB", "A100-SXM-80GB"}


@pytest.mark.parametrize(
    ("file", "column", "value", "said"),
    [
        ("gemm.csv", "gpu", "mi300x", "hardware is 'mi300x', but must be a GPU whose data sheet is known"),
        ("moe.csv", "load", "zipf", "load is 'zipf', but must be 'balanced' or 'power_law_' and an exponent"),
        ("attention.csv", "heads", "many", "attention.csv"),
    ],
)
def test_broken_files_are_told(tmp_path, file, column, value, said):
    write(tmp_path, ["h100_sxm"], count=3)
    table = pd.read_csv(tmp_path / file, dtype=str)
    table.loc[0, column] = value
    table.to_csv(tmp_path / file, index=False)
    with pytest.raises(ValueError, match=said):
        judged_operators(tmp_path)


def test_the_file_holds_what_was_fitted(folder):
    measured = training(folder)
    measured = dataclasses.replace(measured, streams=(), attention=measured.attention[:1])
    figures = fitted(measured)
    document = json.loads(json.dumps(build_kernels.document(figures)))
    again = figures_of(document)
    assert set(again.products) == set(again.grouped) == {"half"}
    assert again.products["half"].gpus == ("A100-SXM-80GB", "H100-SXM-80GB")
    assert document["units"]["grouped"]["floor_s"] == "s"
    for name, made in figures.products["half"].figures.items():
        kept = dataclasses.asdict(again.products["half"].figures[name])
        assert kept == pytest.approx(dataclasses.asdict(made), rel=1e-3)


@dataclasses.dataclass(frozen=True)
class Line:
    start: float
    slope: float


def test_generations_are_drawn_to_what_they_have_in_common():
    x = np.geomspace(1, 100, 50)
    priors = {"start": Prior(1.0, 0.5), "slope": Prior(0.5, 0.5, True)}

    def kernels(generation, start, slope, chosen):
        return Kernels(generation, lambda line: line.start + line.slope * x[chosen], start + slope * x[chosen])

    found = fit(
        Line, priors, [kernels("ampere", 2.0, 0.8, slice(None)), kernels("ada", 3.0, 0.8, slice(-1, None))], 0.02
    )
    assert dataclasses.astuple(found["ampere"]) == pytest.approx((2.0, 0.8), rel=0.02)
    # One kernel alone says nothing of the start, so that it is that of the family, near the other generation's.
    assert 1.0 < found["ada"].start < 2.2
    assert found["synchronous"].slope == pytest.approx(0.8, abs=0.1)
    assert abs(found["asynchronous"].slope - 0.5) < abs(found["synchronous"].slope - 0.5)


def test_what_has_no_spread_is_not_fitted():
    x = np.geomspace(1, 100, 20)
    kernels = Kernels("hopper", lambda line: line.start + line.slope * x, 2 + 0.8 * x)
    found = fit(Line, {"start": Prior(1.0, 0.0), "slope": Prior(0.5, 0.5, True)}, [kernels], 0.02)
    assert found["hopper"].start == 1.0
