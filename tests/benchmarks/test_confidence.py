"""The benchmark of said probabilities: its scores by hand, its choices, and what a choice without errors comes to."""

import numpy as np
import pytest

import confidence
from _confidence_choices import Choice, Option, gpt
from alpa_dejavu.planning import GivenStage
from alpa_dejavu.planning.rivals.stages import config_of
from alpa_dejavu.problem import Submesh
from alpa_dejavu.testing import example_cluster


def rows(*pairs):
    return [{"said": said, "right": right} for said, right in pairs]


def test_scores_by_hand():
    each = rows((0.9, True), (0.5, False), (0.1, False), (0.7, True))
    assert confidence.brier(each) == pytest.approx(((0.01 + 0.25 + 0.01 + 0.09) / 4, 0.25))


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


def test_the_blocks_of_a_gpt_compute_what_the_formula_says():
    model = gpt(64, 4, 2, 16, 100, 2.0, "float16")
    block = model.layers[1]
    products = float(block.forward.flop[block.forward.is_product] @ block.forward.count[block.forward.is_product])
    assert products == pytest.approx(24 * 16 * 64**2 + 4 * 16**2 * 64)
    back = float(block.backward.flop[block.backward.is_product] @ block.backward.count[block.backward.is_product])
    assert back == pytest.approx(2 * products)
    parameters = sum(tensor.num_bytes for tensor in model.tensors if tensor.role == "parameter") / 2
    assert parameters == 2 * 12 * 64**2 + 100 * 64
    assert np.allclose(sum(block.exchanged_bytes), 4 * 16 * 64 * 2)
