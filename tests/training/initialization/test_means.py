"""Averages of candidates, and the permutations before them."""

import numpy as np
import pytest

from alpa_dejavu.training.initialization import parallel_initialize
from alpa_dejavu.training.initialization._align import aligned, groups_of
from alpa_dejavu.training.initialization._breed import averaged, crossed, mutated
from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization.rules import Child, Decision, Rule
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


def test_children_are_made_of_their_parents():
    state = {"params": {"w": np.ones((3, 3), np.float32) * np.arange(3, dtype=np.float32)}, "count": np.int32(7)}
    shape, leaves = layout(state), leaves_of(state)
    near = mutated(leaves, shape, 0.01, np.random.default_rng(0))
    assert near[0] == 7
    assert 0 < np.abs(near[1] - leaves[1]).max() < 0.05
    assert near[1].dtype == np.float32
    other = (np.int32(9), np.zeros((3, 3), np.float32))
    drawn = [crossed(leaves, other, shape, np.random.default_rng(n)) for n in range(20)]
    assert {float(each[1].sum()) for each in drawn} == {0.0, 9.0}
    assert all(each[0] == 7 for each in drawn)
    mean = averaged([leaves, other], shape, weights_only=False)
    assert mean[0] == 7
    assert np.allclose(mean[1], leaves[1] / 2)


class Twins(Rule):
    """The best, and a copy of it that is moved a little."""

    def decide(self, standing):
        rung = max(map(standing.rung, standing.waiting))
        best = standing.best_first(rung, standing.waiting)[:1]
        return Decision(best, (Child(best, 0.2), Child(best, 0.2)) if rung == 0 else (), "twins")


def run(**options):
    return parallel_initialize(*regression(learning_rate=0.002), num_candidates=4, budget_steps=120, lanes=1, **options)


def test_a_mean_of_relatives_is_measured_and_the_better_is_trained_on():
    result = run(keep=Twins(), rungs=(8, 16))
    means = [curve for curve in result.curves if curve.number > 5]
    assert 1 <= len(means) <= 2
    assert all(set(curve.parents) <= {4, 5, means[0].parents[0]} | set(means[0].parents) for curve in means)
    assert all(curve.first_step == 16 for curve in means)
    chosen = result.curves[result.chosen]
    if chosen in means:
        assert "which is better than" in chosen.why
    else:
        assert all("on the same batches" in curve.why for curve in means)
    measured = result.total_steps - sum(len(curve.losses) for curve in result.curves)
    assert measured == 2 * 4 * len(means)
    assert len(result.losses) == 120
    assert run(keep=Twins(), rungs=(8, 16), average=False).curves[-1].number == 5


class Crosses(Rule):
    """The two best have two children, which have tensors of both."""

    def decide(self, standing):
        best = standing.waiting_best_first()[:2]
        first = max(map(standing.rung, standing.waiting)) == 0
        return Decision(best, (Child(best), Child(best[::-1])) if first else (), "crosses")


def test_a_cross_of_independent_candidates_is_near_to_none_of_them():
    result = run(keep=Crosses(), rungs=(8, 16))
    assert [curve.first_step for curve in result.curves] == [0, 0, 0, 0, 8, 8]
    assert all(len(curve.parents) == 2 for curve in result.curves[4:])


def test_independent_candidates_are_averaged_only_where_units_are_known():
    alone = run(rungs=(8, 16))
    assert alone.curves[-1].number == 3
    aligned_ones = run(rungs=(8, 16), units=[{"['params']['matrix']": 1, "['params']['bias']": 0}])
    mean = aligned_ones.curves[4]
    assert len(mean.parents) == 2
    assert mean.first_step == 16
