"""Alpa's own tests of its dynamic programs, with `dynamic` in the place of the first one."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

import alpa_dejavu

TESTS = Path(__file__).parents[3] / "shared" / "alpa-v0.2.3" / "tests" / "pipeline_parallel"

pytestmark = pytest.mark.skipif(not TESTS.is_dir(), reason=f"Alpa's tests are to be in {TESTS}")


@pytest.fixture
def own(monkeypatch):
    """Loads a file of them; leaves nothing there, and none of what they set in Alpa."""
    alpa = pytest.importorskip("alpa")
    monkeypatch.setattr(alpa.util, "_DISABLE_NUMBA", False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return loaded


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, TESTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dynamic_programming(own):
    module = own("test_dynamic_programming")
    module.stage_construction_dp = alpa_dejavu.training_dp
    module.DynamicProgrammingTest("test_stage_construction").test_stage_construction()


def test_old_dp_vs_new_dp(own):
    module, compared = own("test_old_dp_vs_new_dp"), []
    second, ours = module.dp_2, []

    def first(*given):
        ours.append(alpa_dejavu.training_dp(*given))
        return ours[-1]

    def beside(*given):
        """Alpa's second program; its sums are in float32, so that its cost isn't the same to the last bit."""
        cost, stages = second(*given)
        expected, expected_stages = ours[-1]
        assert cost == pytest.approx(expected, rel=1e-6)
        assert stages == expected_stages
        compared.append(math.isfinite(cost))
        return ours[-1]

    module.dp, module.dp_2 = first, beside
    module.OldNewDPTest("test_dp").test_dp()
    assert len(compared) == 48
    assert any(compared)
