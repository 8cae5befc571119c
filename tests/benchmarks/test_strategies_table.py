"""The table of strategies: AMP's cases as models, layers by their profile, and what is written."""

import dataclasses
import json
from pathlib import Path

import pytest

import strategies
from _strategy_cases import ProfiledLayers, cases, model_of, without_starts
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning.rivals import Amp, HetPipe, Megatron, StrategyTask

PROFILES = Path(__file__).parents[3] / "shared" / "data" / "amp"
HOMOGENEOUS, _, UNEVEN = cases()


def profiled(folder, model, rows):
    for device in ("t4", "v100"):
        for degree in (1, 2, 4):
            lines = [f"{n},{(n + 1) / degree}" for n in range(rows)]
            path = folder / f"layer_forward_{model}_{device}_tp{degree}.csv"
            path.write_text("\n".join(["layer,forward_s_per_sample", *lines, ""]), encoding="utf-8")
    return ProfiledLayers.of(folder)


@pytest.fixture
def small(monkeypatch):
    case = dataclasses.replace(UNEVEN, layers=[*UNEVEN.layers[:3], *UNEVEN.layers[13:16]], batch=8)
    monkeypatch.setattr(strategies, "cases", lambda: [case])
    monkeypatch.setattr(strategies, "STRATEGIES", (Megatron(), Amp(), HetPipe("ed"), HetPipe("np")))
    monkeypatch.setattr(strategies, "LOGGED", {})
    return case


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_layer_takes_what_its_profile_says(tmp_path, degree):
    latency = profiled(tmp_path, "gpt2", 30)
    model = with_micro_batch(model_of(HOMOGENEOUS.layers, "gpt2", profiled=True), 16)
    division = EvenDivision(model, ModelMemory.of(model), 4, degree, 0)
    device = HOMOGENEOUS.cluster.hosts[0].device
    for layer in (0, 5, 29):
        once = (layer + 1) / degree * 16 / 4
        assert latency.predict(division.operators("forward")[layer], device).total_s == pytest.approx(once)
        assert latency.predict(division.operators("backward")[layer], device).total_s == pytest.approx(2 * once)


def test_the_table_is_written(small, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert strategies.main(["--json", str(out)]) == 0
    written = json.loads(out.read_text(encoding="utf-8"))["cases"]["unlike layers"]["strategies"]
    assert list(written) == ["megatron", "amp (paper)", "hetpipe (ed)", "hetpipe (np)"]
    assert written["megatron"]["over_megatron"] == 1.0
    assert written["amp (paper)"]["plan"][0]["stages"][0]["layers"][0] == 0
    assert not written["hetpipe (ed)"]["runs_on_alpa"]
    assert "unlike layers" in capsys.readouterr().out


def test_a_device_that_wasnt_profiled_is_named(tmp_path):
    latency = profiled(tmp_path, "gpt2", 30)
    operators = model_of(HOMOGENEOUS.layers, "gpt2", profiled=True).layers[0].forward
    with pytest.raises(ValueError, match="gpt2 has no profile on a100; plan for devices that have one"):
        latency.predict(operators, named_cluster("p4d.24xlarge").hosts[0].device)


@pytest.mark.skipif(not PROFILES.is_dir(), reason=f"AMP's profiles are to be in {PROFILES}")
def test_the_released_variant_comes_out_with_what_amp_logged():
    model = model_of(UNEVEN.layers, UNEVEN.model_name, profiled=True)
    cluster, latency = without_starts(UNEVEN.cluster), ProfiledLayers.of(PROFILES)
    task = StrategyTask(model, 1, cluster, UNEVEN.batch, CostModels(latency, AlphaBeta()))
    found = strategies._logged(task, PROFILES / strategies.LOGGED[UNEVEN.name])
    assert found["agree"] == found["logged"] == 56
