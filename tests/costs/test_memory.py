"""Memory of stages, reckoned by hand, and how many stages may follow."""

import numpy as np
import pytest

from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.memory import MemoryLimits, ModelMemory, StageMemory, stage_memory, successors_that_fit
from alpa_dejavu.problem import Layer, MeshConfig, Model, Operators, Run, Tensor
from alpa_dejavu.problem.slicing_problem import NO_LIMIT
from models import chain


def kept_by(model, config):
    """Of a model divided evenly."""
    whole = ModelMemory.of(model)
    division = EvenDivision(model, whole, config.data_parallel, config.tensor_parallel, config.zero)
    return stage_memory(whole, division.memory(), config.remat == "layer")


def test_each_kind_by_hand():
    memory = ModelMemory.of(chain(3, parameter_bytes=1000.0, activation_bytes=100.0))
    assert memory.parameters[0, 2] == memory.gradients[0, 2] == 3000
    assert memory.optimizer[1, 1] == 2000
    assert memory.activations[0, 2] == 300
    assert memory.activations[2, 2] == 100
    assert memory.activations[2, 1] == 0


def test_sharding_divides_what_it_divides():
    model = chain(1)
    across = kept_by(model, MeshConfig((4, 1), 4, 1, zero=2))
    along = kept_by(model, MeshConfig((1, 4), 1, 4))
    whole = kept_by(model, MeshConfig((4, 1), 4, 1))
    assert across.resident[0, 0] == 1000 + 1000 + 2000 / 4
    assert whole.resident[0, 0] == 1000 + 1000 + 2000
    assert along.resident[0, 0] == 4000 / 4
    assert across.per_micro_batch[0, 0] == pytest.approx(100 / 4)
    assert 100 / 4 < along.per_micro_batch[0, 0] < 100


@pytest.mark.parametrize(
    ("schedule", "limit", "successors"),
    [
        ("1f1b", 999, -1),
        ("1f1b", 1099, -1),
        ("1f1b", 1100, 0),
        ("1f1b", 1350, 2),
        ("1f1b", 1800, NO_LIMIT),
        ("1f1b_overlap_friendly", 1299, 0),
        ("1f1b_overlap_friendly", 1300, 1),
        ("1f1b_overlap_friendly", 1800, NO_LIMIT),
        ("gpipe", 1799, -1),
        ("gpipe", 1800, NO_LIMIT),
        ("inference", 999, -1),
        ("inference", 1000, NO_LIMIT),
    ],
)
def test_successors_by_hand(schedule, limit, successors):
    stage = StageMemory(np.full((1, 1), 900.0), np.full((1, 1), 100.0), np.full((1, 1), 100.0))
    assert successors_that_fit(stage, MemoryLimits(limit), Run(8, schedule))[0, 0] == successors


def test_remat_keeps_the_layers_inputs_and_computes_the_rest_again():
    nothing = Operators.of([])
    layers = tuple(Layer(str(n), nothing, nothing, nothing, 5.0, 7.0) for n in range(2))
    tensors = (
        Tensor(10.0, "input", -1, (0, 3)),
        Tensor(20.0, "activation", 0, (1, 2)),  # what layer 1 takes in
        Tensor(300.0, "activation", 0, (3,)),  # what layer 0 keeps for its own backward
    )
    model = Model(layers, tensors)
    plain, again = (kept_by(model, MeshConfig((1, 1), 1, 1, remat=remat)) for remat in ("none", "layer"))
    assert plain.per_micro_batch[0, 1] == 330
    assert again.per_micro_batch[0, 1] == 30
    assert plain.temporary[0, 1] == 7
    assert again.temporary[0, 1] == 7 + 310
