"""Figures of small studies, by hand."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import confidence
import gpu_steps
import kraken
from _confidence_choices import Choice, Option, gpt
from _resilience_training import bound_of_counts
from alpa_dejavu.planning import GivenStage
from alpa_dejavu.planning.rivals.stages import config_of
from alpa_dejavu.problem import Submesh
from alpa_dejavu.testing import example_cluster


def example(measured_s):
    """A GPT of two blocks on two devices: one stage on both, or one on each."""
    model = gpt(64, 4, 2, 16, 100, 4.0, "float32")
    one = GivenStage(0, 3, Submesh(1, 2), config_of(2, 1))
    two = [GivenStage(first, last, Submesh(1, 1), config_of(1, 1)) for first, last in ((0, 1), (2, 3))]
    options = Option((one,), 2, 4, measured_s[0]), Option(tuple(two), 1, 8, measured_s[1])
    return Choice("made up", "by hand", "a choice", model, example_cluster(1, 2, memory_bytes=1e12), options)


@pytest.mark.parametrize("fastest", [0, 1])
def test_a_choice_is_right_where_the_chosen_plan_is_nearly_the_fastest(fastest):
    slower = example([1.0 if n == fastest else 2.0 for n in range(2)])
    found = confidence.judged(slower)
    alike = confidence.judged(example([1.0, 1.04]))
    assert alike["right"]
    assert found["said"] == alike["said"], "what was measured isn't known to the planner"
    assert found["right"] == (found["regret"] == 0.0)
    assert found["regret"] in (0.0, 1.0)
    assert {confidence.judged(example(each))["right"] for each in ([1.0, 2.0], [2.0, 1.0])} == {True, False}


SOURCE = "class T:\n    def test_a(self): ...\n    def test_b(self): ...\n    def test_c(self): ...\n"


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    for path, source in {
        "runtime/test_x.py": SOURCE,
        "runtime/test_cupy.py": "import cupy\n",
        "runtime/test_xla_nccl.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)
    return tmp_path


TINY = "transformer:hidden=32,blocks=1,heads=2,vocabulary=64,sequence=16"


def test_a_step_is_exported(tmp_path):
    gpu_steps.exported(tmp_path, [(TINY, 2)])
    (step,) = json.loads((tmp_path / "index.json").read_text())
    assert (step["kind"], step["case"]) == ("step", {"model": TINY, "batch": 2})
    (file,) = step["files"]
    assert file["in"][: step["state"]] == file["out"][: step["state"]]
    assert file["in"][step["state"] :] == [[[2, 16], "int32"], [[2, 16], "int32"]], "tokens and labels"
    # Adam keeps two moments of each master copy.
    moments = [file["in"][n] for n in step["zeros"] if file["in"][n][0]]
    masters = [one for one in file["in"][: step["state"]] if one[1] == "float32" and one[0]]
    assert 3 * len(moments) == 2 * len(masters)
    assert (tmp_path / file["name"]).stat().st_size > 100


def test_a_step_that_takes_what_is_predicted_is_inside_and_has_no_error():
    cluster = gpu_steps.one_device("NVIDIA H100 80GB HBM3")
    assert cluster.num_devices == 1
    first = gpu_steps.predicted({"model": TINY, "batch": 2, "step_s": 1.0, "peak_bytes": 1}, cluster)
    assert not first["inside"]
    row = {"model": TINY, "batch": 2, "step_s": first["predicted_s"], "peak_bytes": first["memory_bytes"]}
    again = gpu_steps.predicted(row, cluster)
    assert again["inside"]
    assert again["predicted_s"] == row["step_s"]


def layer_parameters(size):
    """Matrices of a layer: four of attention, and two of the feed-forward layer, in each way."""
    return size.ways * size.hidden**2 * (4 + 2 * size.expansion)


def test_the_published_cases_have_layers_of_equal_parameters():
    cases = kraken._published()
    assert len(cases) == 20
    for _, devices, prompt, standard, ways in cases:
        assert (standard.ways, ways.ways) == (1, devices)
        assert standard.sequence == ways.sequence == prompt
        assert layer_parameters(ways) == pytest.approx(layer_parameters(standard), rel=0.03)


def test_the_bound_is_the_papers():
    assert bound_of_counts([np.ones((2, 3)), np.full((3, 1), 0.5)], [2], 1.0) == 1.0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**16), st.lists(st.integers(0, 3), min_size=2, max_size=2))
def test_no_fault_of_neurons_exceeds_the_bounds(seed, counts):
    draw = np.random.default_rng(seed)
    kernels = [draw.standard_normal(shape) * 0.5 for shape in ((3, 4), (4, 4), (4, 2))]
    inputs = draw.standard_normal((20, 3)) * 3
    right = np.tanh(np.tanh(inputs @ kernels[0]) @ kernels[1]) @ kernels[2]
    bound = bound_of_counts(kernels, counts, 1.0)
    for first in itertools.combinations(range(4), counts[0]):
        for second in itertools.combinations(range(4), counts[1]):
            hits = [np.isin(np.arange(4), units) for units in (first, second)]
            values = np.tanh(inputs @ kernels[0]) * ~hits[0]
            wrong = (np.tanh(values @ kernels[1]) * ~hits[1]) @ kernels[2]
            assert np.abs(wrong - right).max() <= bound + 1e-9
