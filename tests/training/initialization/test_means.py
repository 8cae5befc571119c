"""Averages of candidates, and the permutations before them."""

import numpy as np
import pytest

from alpa_dejavu.training.initialization import parallel_initialize
from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization._means import aligned, groups_of
from small_models import dense, regression

SIZES = (5, 8, 7, 3)


def network(seed):
    import jax

    return dense(jax.random.PRNGKey(seed), SIZES)


def leaves_of(state):
    import jax

    return tuple(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(state))


def answer(params, inputs):
    x = inputs
    for n in range(3):
        x = x @ params[f"Dense_{n}"]["kernel"] + params[f"Dense_{n}"]["bias"]
        x = np.maximum(x, 0) if n < 2 else x
    return x


def test_a_shuffled_network_is_put_in_order_again_and_does_the_same():
    params = network(1)
    shape = layout(params)
    generator = np.random.default_rng(0)
    shuffled = {name: dict(layer) for name, layer in params.items()}
    for n in range(2):
        order = generator.permutation(SIZES[n + 1])
        layer, after = shuffled[f"Dense_{n}"], shuffled[f"Dense_{n + 1}"]
        layer["kernel"], layer["bias"] = np.asarray(layer["kernel"])[:, order], np.asarray(layer["bias"])[order]
        after["kernel"] = np.asarray(after["kernel"])[order]
    inputs = generator.standard_normal((20, 5))
    assert np.allclose(answer(shuffled, inputs), answer(params, inputs), atol=1e-5)
    found = aligned(leaves_of(shuffled), leaves_of(params), groups_of("chain", shape))
    assert all(np.allclose(a, b) for a, b in zip(found, leaves_of(params), strict=True))


def test_aligning_an_independent_network_keeps_what_it_does():
    one, other = network(1), network(2)
    shape = layout(one)
    found = aligned(leaves_of(other), leaves_of(one), groups_of("chain", shape))
    inputs = np.random.default_rng(0).standard_normal((20, 5))
    assert any((a != b).any() for a, b in zip(found, leaves_of(other), strict=True))
    assert np.allclose(answer(shape.state(found), inputs), answer(other, inputs), atol=1e-5)


def test_units_by_name_are_checked():
    shape = layout(network(1))
    named = [{"['Dense_0']['kernel']": 1, "['Dense_0']['bias']": 0, "['Dense_1']['kernel']": 0}]
    assert groups_of(named, shape) == groups_of("chain", shape)[:1] or set(groups_of(named, shape)[0]) == set(
        groups_of("chain", shape)[0]
    )
    for units, said in [
        ([{"kernel": 0}], "units names 'kernel'"), ([{"['Dense_0']['bias']": 1}], "count axes from 0"),
        ([{"['Dense_0']['bias']": 0, "['Dense_1']['bias']": 0}], r"axes of lengths \[7, 8\]"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=said):
            groups_of(units, shape)
    with pytest.raises(ValueError, match="no chain"):
        groups_of("chain", layout({"a": np.ones((2, 3)), "b": np.ones((4, 2))}))
    with pytest.raises(ValueError, match="fewer than two matrices"):
        groups_of("chain", layout({"a": np.ones((2, 3))}))


def run(**options):
    return parallel_initialize(*regression(learning_rate=0.002), num_candidates=4, budget_steps=120, lanes=1, **options)


UNITS = [{"['params']['matrix']": 1, "['params']['bias']": 0}]


def test_candidates_are_averaged_only_where_units_are_known():
    assert run(rungs=(8, 16)).curves[-1].number == 3
    assert run(rungs=(8, 16), units=UNITS, average=False).curves[-1].number == 3


def test_a_mean_is_measured_and_the_better_is_trained_on():
    result = run(rungs=(8, 16), units=UNITS)
    first, *others = [curve for curve in result.curves if curve.parents]
    assert others == []
    assert (len(first.parents), first.first_step) == (2, 16)
    chosen = result.curves[result.chosen]
    assert "which is better than" in chosen.why if chosen is first else "on the same batches" in first.why
    measured = result.total_steps - sum(len(curve.losses) for curve in result.curves)
    assert measured == 2 * 4
    assert len(result.losses) == 120
