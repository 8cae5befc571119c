"""NCCL's measured collectives: read, fitted, left out and judged, on made-up measurements of two GPUs."""

import json

import numpy as np
import pandas as pd
import pytest

import build_nccl
from alpa_dejavu.costs.communication import Nccl
from alpa_dejavu.costs.communication._nccl import FILE, NcclFigures, NetworkFigures
from build_nccl import fit, host_of, operators
from published._collectives import shipped
from published._folder import Folder

KEYS = {"median_error", "bias", "within_20", "inside", "interval_factor"}
SIZES = 2.0 ** np.arange(10, 30, 3)


def write(folder, factors, names=("all_gather", "alltoall")):
    parts = []
    for gpu, factor in factors.items():
        for name in names:
            for size in (2, 8):
                collective = name.replace("alltoall", "all_to_all")
                seconds = factor * Nccl().seconds(collective, SIZES, host_of(gpu, size))
                parts.append(pd.DataFrame({"num_gpus": size, "num_bytes": SIZES, "time_s": seconds}))
                parts[-1] = parts[-1].assign(gpu=gpu, library="nccl", collective=name, dtype="half")
    pd.concat(parts).to_csv(folder / "nccl.csv", index=False)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, {"h100_sxm": 1.0, "a100_sxm": 1.1})
    return tmp_path


def test_the_shipped_model_is_judged_on_any_gpu_that_is_known(tmp_path):
    write(tmp_path, {"h200_sxm": 1.05, "gb200_sxm": 0.9, "l40s": 1.0})
    scores = shipped(tmp_path)
    assert scores.keys() >= KEYS
    assert scores["rows"] == 3 * 4 * len(SIZES)
    assert scores["median_error"] == pytest.approx(0.05, abs=0.01)
    assert scores["inside"] == scores["within_20"] == 1
    assert scores["by_source"]["gb200_sxm"]["bias"] == pytest.approx(1 / 0.9 - 1)
    assert scores["by_source"]["l40s"]["median_error"] == pytest.approx(0, abs=1e-9)
    assert scores["nvlink"]["rows"] == 2 * 4 * len(SIZES)
    assert scores["long"]["rows"] + scores["short"]["rows"] == scores["rows"]


def test_a_fit_has_figures_for_each_generation_and_common_ones(folder):
    rows = operators(Folder(folder))
    figures = fit(rows)
    assert set(figures) == {"ampere", "hopper", "common"}
    errors = np.concatenate([row.errors(figures[row.kind]) for row in rows])
    assert np.median(np.abs(errors)) < 0.05
    shares = [figures[kind].share for kind in ("ampere", "hopper")]
    assert min(shares) - 0.05 < figures["common"].share < max(shares) + 0.05


def test_the_file_is_built_the_same_again(folder, tmp_path, monkeypatch):
    p3 = build_nccl.named_cluster("p3.16xlarge", 2)
    model = Nccl(2e-5, None, NetworkFigures(4.0, 2.0, 0.9, 0.8))

    def profiled(name, hosts):
        group = build_nccl.Group(p3, hosts)
        seconds = model.seconds(name, SIZES, group)
        return build_nccl.Measured(f"groups of {len(hosts)}", name, group, SIZES, seconds, 2e-5)

    groups = ((0, 0), (0, 0, 0, 0), (0, 1), (0, 0, 1, 1))
    alpa = [profiled(name, hosts) for name in ("all_reduce", "all_to_all") for hosts in groups]
    monkeypatch.setattr(build_nccl, "profiles", lambda folder: ([], alpa))
    texts = []
    for name in ("a.json", "b.json"):
        assert build_nccl.main(["--operators", str(folder), "--train", str(folder), "--out", str(tmp_path / name)]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    content = json.loads(texts[0])
    assert content.keys() == json.loads(FILE.read_text()).keys()
    assert NetworkFigures(**content["network"]["sockets"]).share == pytest.approx(0.9, rel=0.1)
    assert NcclFigures(**content["figures"]["hopper"]).share > 0.5
