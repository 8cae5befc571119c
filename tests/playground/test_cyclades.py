"""CYCLADES: its bits are those of serial execution, and where there is one component, groups of little conflict."""

import itertools

import jax
import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Job
from alpa_dejavu.playground._learner import batches
from alpa_dejavu.playground.exchanges import Cyclades
from alpa_dejavu.playground.exchanges._cyclades import components, cosines, dealt, similar
from alpa_dejavu.playground.problems._makers import sparse_least_squares
from seen_training import Messages, simulated

STEPS = 6


@pytest.fixture(scope="module")
def sparse():
    return sparse_least_squares(rows=512, columns=1024)


def serial(least, job, workers, seed, steps):
    """Applies all samples one by one by plain JAX, in the order of rounds, workers and batches."""
    gradient = jax.jit(jax.grad(least.loss))
    updated = jax.jit(lambda params, one: optax.apply_updates(params, optax.sgd(0.1).update(one, state)[0]))
    state = optax.sgd(0.1).init(0.0)
    params, rows = np.zeros(least.init(None).shape, np.float32), [batches(job, seed, n) for n in range(workers)]
    for _ in range(steps):
        for row in np.concatenate([next(each) for each in rows]):
            one = gradient(params, (least.train[0][row : row + 1], least.train[1][row : row + 1]))
            params = updated(params, one)
    return np.asarray(params)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_its_bits_are_those_of_serial_execution(sparse, workers):
    seen, job = Messages(), Job(sparse, 0.1, 32 // workers, optax.sgd(0.1), spread=0.3)
    history = simulated(job, (1, workers), Cyclades(), steps=STEPS, seed=3, looks=0, faults=[seen])
    assert history.params.tobytes() == serial(sparse, job, workers, 3, STEPS).tobytes()
    assert history.end == "steps"
    assert history.notes == ()
    sizes = [len(message.payload[0]) for message in seen.tagged("samples")]
    assert workers == 1 or (len(sizes) == workers * STEPS and min(sizes) > 0)


def test_messages_and_bytes_are_those_of_samples_and_changed_parameters(sparse):
    seen = Messages()
    history = simulated(Job(sparse, 0.1, 4, optax.sgd(0.1)), (1, 4), Cyclades(), steps=STEPS, looks=0, faults=[seen])
    expected, asked = 0.0, seen.tagged("samples")
    for start in range(0, len(asked), 4):
        groups = [message.payload[0] for message in asked[start : start + 4]]
        changed = [set(sparse.coordinates(sparse.train[0][group]).ravel()) for group in groups]
        expected += sum(4 * len(group) for group in groups[1:]) + sum(8 * len(own) for own in changed[1:])
        expected += 3 * 8 * len(set().union(*changed))
    assert history.num_bytes == pytest.approx(expected)
    assert history.link_messages.sum() == 3 * 3 * STEPS


def test_the_sparse_problem_depends_on_no_other_parameters_than_it_says(sparse):
    rows = np.arange(64)
    params = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    each = jax.vmap(lambda inputs, target: jax.grad(sparse.loss)(params, (inputs[None], target[None])))
    changed = np.asarray(each(sparse.train[0][rows], sparse.train[1][rows])) != 0
    for row, found in zip(rows, changed, strict=True):
        assert set(np.flatnonzero(found)) <= set(sparse.coordinates(sparse.train[0][row]))


def test_components_are_those_of_sets_that_meet():
    draw = np.random.default_rng(1)
    for _ in range(20):
        coordinates = draw.integers(60, size=(24, 2))
        merged = []
        for sample, own in enumerate(map(set, coordinates.tolist())):
            meets = [part for part in merged if part[1] & own]
            merged = [part for part in merged if part not in meets]
            merged.append(({sample}.union(*(part[0] for part in meets)), own.union(*(part[1] for part in meets))))
        found = components(coordinates)
        assert sorted(map(list, found)) == sorted(sorted(part[0]) for part in merged)
        groups = dealt(found, 4)
        assert sorted(itertools.chain(*groups)) == list(range(24))
        assert max(map(len, groups)) <= 24 / 4 + max(map(len, found))


def test_groups_of_least_conflict_are_near_the_best_and_cut_less_than_random_ones():
    draw = np.random.default_rng(2)
    costs = {"best": 0.0, "cosine": 0.0, "random": 0.0}

    def cut(conflict, group):
        return conflict[np.ix_(group, np.setdiff1d(np.arange(10), group))].sum()

    for _ in range(10):
        # Two kinds of samples, each about one direction, mixed with noise.
        centres = draw.standard_normal((2, 6))[draw.permutation([0] * 5 + [1] * 5)]
        conflict = cosines((centres + 0.6 * draw.standard_normal((10, 6))).astype(np.float32))
        every = [cut(conflict, np.array(half)) for half in itertools.combinations(range(10), 5)]
        groups = similar(conflict, 2)
        assert sorted(np.concatenate(groups)) == list(range(10))
        costs = {name: costs[name] + float(cost) for name, cost in (
            ("best", min(every)), ("random", np.mean(every)), ("cosine", cut(conflict, groups[0])))}  # fmt: skip
    assert costs["best"] <= costs["cosine"] < costs["random"]


def test_an_optimizer_with_moments_is_refused(sparse):
    job = Job(sparse, 0.1, optimizer=optax.adam(0.1))
    with pytest.raises(ValueError, match="optimizer keeps moments or counts steps"):
        simulated(job, (1, 2), Cyclades(), steps=1)
    with pytest.raises(ValueError, match="groups is 'cut', but must be one of 'random'"):
        Cyclades("cut")
