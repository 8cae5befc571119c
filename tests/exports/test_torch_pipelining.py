"""PyTorch's own pipelining trains by splits and schedules of ours on four processes, as the whole model in one does."""

import itertools

import numpy as np
import pytest

from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.schedules import named_schedule, write_schedule

pytestmark = pytest.mark.torch
torch_runtime = pytest.importorskip("torch_runtime", reason="PyTorch isn't installed: the extra `exports`")

SIZES, DEVICES, MICRO_BATCHES = torch_runtime.Sizes(blocks=9, width=16, heads=2, words=31, samples=2, tokens=4), 4, 8
UNEVEN = {1: [4, 3, 3, 1], 2: [1, 1, 2, 1, 2, 2, 1, 1]}


def cut(lengths):
    ends = np.cumsum([0, *lengths]).tolist()
    return [list(range(first, last)) for first, last in itertools.pairwise(ends)]


@pytest.fixture(scope="module")
def processes():
    with torch_runtime.started(DEVICES, SIZES, MICRO_BATCHES) as running:
        yield running


@pytest.fixture(scope="module")
def expected():
    return torch_runtime.gradients_on_one_device(SIZES, MICRO_BATCHES)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb_h1", "interleaved", "zb_v", "v_min", "dualpipe_v"])
def test_an_uneven_split_has_the_gradients_of_one_device(tmp_path, processes, expected, name):
    layers = cut(UNEVEN[schedule_form(name).chunks])
    assert sum(map(len, layers)) == SIZES.layers
    file = tmp_path / "schedule.csv"
    write_schedule(file, named_schedule(name, len(layers), MICRO_BATCHES))
    processes.all("prepare", name, torch_runtime.Split(layers, file))
    by_stage = {stage: found for own in processes.all("gradients", name) for stage, found in own.items()}
    found = [layer for stage in sorted(by_stage) for layer in by_stage[stage]]
    for layer, wanted in zip(found, expected, strict=True):
        for one, other in zip(layer, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert processes.step_s(name) > 0


def test_a_failing_process_says_why(processes):
    with pytest.raises(RuntimeError, match="a process of the pipeline failed: KeyError"):
        processes.one(0, "step", "not prepared")
