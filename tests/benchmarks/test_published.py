"""What was published and measured beside what is predicted: kernels, collectives and steps."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import build_kernels
import build_nccl
import published_training
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.communication import Nccl
from alpa_dejavu.costs.communication._nccl import FILE, NcclFigures, NetworkFigures
from alpa_dejavu.costs.kernels import (
    AttentionSizes,
    ExpertFigures,
    attention_seconds,
    figures_of,
    kernel_figures,
    product_seconds,
)
from alpa_dejavu.problem import FusedAttention
from build_nccl import host_of, operators
from published._experts import experts_seconds, tokens_of_fullest
from published._folder import Folder
from published._jobs import published_job
from published._kernel_fit import Kernels, Prior, fit
from published._operators import KINDS, fitted, judged_operators, training
from published._steps import estimated

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


SIZES = 2.0 ** np.arange(10, 30, 3)


def write_collectives(measured, factors, names=("all_gather", "alltoall")):
    parts = []
    for gpu, factor in factors.items():
        for name in names:
            for size in (2, 8):
                collective = name.replace("alltoall", "all_to_all")
                seconds = factor * Nccl().seconds(collective, SIZES, host_of(gpu, size))
                parts.append(pd.DataFrame({"num_gpus": size, "num_bytes": SIZES, "time_s": seconds}))
                parts[-1] = parts[-1].assign(gpu=gpu, library="nccl", collective=name, dtype="half")
    pd.concat(parts).to_csv(measured / "nccl.csv", index=False)


@pytest.fixture
def measured(tmp_path):
    write_collectives(tmp_path, {"h100_sxm": 1.0, "a100_sxm": 1.1})
    return tmp_path


def test_a_fit_has_figures_for_each_generation_and_common_ones(measured):
    rows = operators(Folder(measured))
    figures = build_nccl.fit(rows)
    assert set(figures) == {"ampere", "hopper", "common"}
    errors = np.concatenate([row.errors(figures[row.kind]) for row in rows])
    assert np.median(np.abs(errors)) < 0.05
    shares = [figures[kind].share for kind in ("ampere", "hopper")]
    assert min(shares) - 0.05 < figures["common"].share < max(shares) + 0.05


def test_the_file_is_built_the_same_again(measured, tmp_path, monkeypatch):
    p3 = build_nccl.named_cluster("p3.16xlarge", 2)
    model = Nccl(2e-5, None, NetworkFigures(4.0, 2.0, 0.9, 0.8))

    def profiled(name, hosts):
        group = build_nccl.Group(p3, hosts)
        seconds = model.seconds(name, SIZES, group)
        return build_nccl.Measured(f"groups of {len(hosts)}", name, group, SIZES, seconds, 2e-5)

    groups = ((0, 0), (0, 0, 0, 0), (0, 1), (0, 0, 1, 1))
    alpa = [profiled(name, hosts) for name in ("all_reduce", "all_to_all") for hosts in groups]
    monkeypatch.setattr(build_nccl, "profiles", lambda measured: ([], alpa))
    texts = []
    for name in ("a.json", "b.json"):
        assert (
            build_nccl.main(["--operators", str(measured), "--train", str(measured), "--out", str(tmp_path / name)])
            == 0
        )
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    content = json.loads(texts[0])
    assert content.keys() == json.loads(FILE.read_text()).keys()
    assert NetworkFigures(**content["network"]["sockets"]).share == pytest.approx(0.9, rel=0.1)
    assert NcclFigures(**content["figures"]["hopper"]).share > 0.5


ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
KEPT = ROOT / "docs" / "results" / "predictions.json"
GOLDEN = Path(__file__).parent / "data" / "made_up_steps.json"
POINT = 0.01


def test_no_median_is_worse_by_more_than_a_point(tmp_path):
    if not DATA.is_dir():
        pytest.skip("needs the measurements beside the checkout")
    found = tmp_path / "found.json"
    asked = {
        "--steps": DATA / "published-training" / "steps.csv", "--memory": DATA / "megatron-b200" / "steps.csv",
        "--operators": DATA / "gpu-operators", "--json": found,
    }  # fmt: skip
    published_training.main([str(word) for pair in asked.items() for word in pair])
    now, then = json.loads(found.read_text()), json.loads(KEPT.read_text())
    for kind in ("steps", "memory", "memory_steps", "products", "attention", "experts", "collectives"):
        assert now[kind]["median_error"] <= then[kind]["median_error"] + POINT, kind
    assert now["steps"]["fits"] == now["memory"]["fits"] == 1
    assert now["steps"]["sources_nearer_than_sheets"] >= 0.75


@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text()))
def test_a_made_up_step_is_predicted_as_before(name):
    row, kept = (json.loads(GOLDEN.read_text())[name][key] for key in ("row", "predicted"))
    found = estimated(published_job({"step_s": 1.0, "source": "made up", **row}))
    assert found.step_s == pytest.approx(kept["step_s"], rel=POINT)
    assert found.peak_bytes / 2**30 == pytest.approx(kept["peak_gib"], rel=POINT)
    assert found.lower_s < found.step_s < found.upper_s < 2 * found.lower_s


def test_a_row_that_lacks_something_is_named(tmp_path, capsys):
    broken = tmp_path / "steps.csv"
    broken.write_text("id,hardware,gpus\n1,H100-80GB,8\n")
    assert published_training.main(["--steps", str(broken)]) == 2
    assert f"{broken}, line 2: has no column" in capsys.readouterr().err
    broken.write_text("id,hardware,gpus\n1,TPU-v5,8\n")
    assert published_training.main(["--steps", str(broken)]) == 2
    assert "hardware is 'TPU-v5', but must be a GPU" in capsys.readouterr().err
    assert published_training.main(["--steps", str(tmp_path / "none.csv")]) == 2
    assert "none.csv can't be read" in capsys.readouterr().err
