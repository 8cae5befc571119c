"""Moving samples while a run goes: who has what, bytes by hand, the same again, and going on after an interruption."""

import dataclasses
import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Job, Problem, Until, simulate
from alpa_dejavu.playground.data import MOVES, DataMove, Handed, move
from alpa_dejavu.playground.testing import check_move
from alpa_dejavu.testing import example_cluster

CASES = [*map(move, MOVES), move("random-share", share=1.0)]


@dataclasses.dataclass(frozen=True, eq=False)
class Script(DataMove):
    """Does the given thing."""

    does: object

    def choose(self, epoch):
        return self.does(epoch)


def nothing():
    return Handed(np.zeros(0, np.int64), np.zeros(0, np.int64))


@pytest.fixture(scope="module")
def numbers():
    """Sixteen samples whose loss, at the parameter 1, is their number: the gradient of number k is k."""
    data = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)

    def loss(params, batch):
        return jnp.mean(params[0] * batch[0])

    return Problem("numbers", lambda key: jnp.ones(1), loss, None, data, data)


def run(trained, moves, steps=12, shards=None, **more):
    shards = [range(4 * n, 4 * n + 4) for n in range(4)] if shards is None else shards
    until, faults = Until(steps=steps), more.pop("faults", [])
    job = Job(trained, 1.0, 2, shards=shards, moves=moves, **more)
    return simulate(job, example_cluster(2, 2), "async-server", until=until, seed=1, looks=2, faults=faults)


@pytest.mark.parametrize("one", CASES, ids=repr)
def test_policies_keep_the_contract(one):
    check_move(one)


def test_epochs_samples_and_bytes_are_those_by_hand(numbers):
    # Four samples and batches of two: an epoch is two gradients, so that five are over before the twelfth begins.
    asked = []

    def choose(epoch):
        asked.append((epoch.worker, epoch.number))
        return Handed(epoch.rows[:1], epoch.partners(1))

    moved, still = run(numbers, Script(choose)), run(numbers, None)
    assert sorted(asked) == [(worker, number) for worker in range(4) for number in range(1, 6)]
    assert moved.num_bytes - still.num_bytes == 20 * 8  # two arrays of four bytes each
    assert run(numbers, Script(choose), sample_bytes=1000.0).num_bytes - still.num_bytes == 20_000
    (note,) = moved.notes
    assert re.fullmatch(r"samples moved: 20, \d+ different ones, 160 bytes", note)


def test_a_moved_sample_is_drawn_by_its_new_worker_alone_once_its_bytes_have_passed(numbers):
    # Worker 0 hands all but one to worker 3, over a link between hosts of 1e9 bytes a second: 3 samples of 2.5e9 bytes.
    held, ages = {}, {}

    def choose(epoch):
        held[epoch.worker, epoch.number], ages[epoch.worker, epoch.number] = epoch.rows.tolist(), epoch.ages.tolist()
        if (epoch.worker, epoch.number) == (0, 1):
            return Handed(epoch.rows[1:], np.full(3, 3))
        return nothing()

    run(numbers, Script(choose), sample_bytes=2.5e9, steps=24)
    assert held[0, 1] == [0, 1, 2, 3]
    assert {tuple(held[0, number]) for number in range(2, 12)} == {(0,)}
    came = next(number for number in range(1, 12) if len(held[3, number]) == 7)
    # Sent after 2 gradients of a second, and 7.5 seconds on their way: there after 9.5, at the end of the fifth epoch.
    assert came == 5
    assert held[3, 5] == [12, 13, 14, 15, 1, 2, 3]
    assert [ages[3, number][4:] for number in (5, 6, 7)] == [[0] * 3, [1] * 3, [2] * 3]
    assert min(ages[3, 7][:4]) > 10**6


def test_by_loss_hands_on_those_of_the_highest_loss(numbers):
    chosen, seen = move("by-loss", share=0.5), []

    def choose(epoch):
        handed = chosen.choose(epoch)
        # The loss of number k is k times the parameter.
        place = epoch.rows.argmax()
        parameter = epoch.losses()[place] / epoch.rows[place]
        np.testing.assert_allclose(epoch.losses(), parameter * epoch.rows, rtol=1e-5)
        if parameter > 0 and epoch.number == 1:
            seen.append(epoch.worker)
            assert handed.rows.tolist() == sorted(epoch.rows.tolist(), reverse=True)[:2]
        return handed

    run(numbers, Script(choose), optimizer=optax.sgd(1e-4))
    assert seen


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda numbers: move("random-share", share=0.0), r"share is 0\.0, but must be above 0 and at most 1"),
        (lambda numbers: move("by-los"), "there is no move named 'by-los'"),
        (lambda numbers: Job(None, 1.0, num_bytes=1, moves=move("by-loss")), "there are no samples, losses or gradie"),
        (lambda numbers: Job(numbers, 1.0, moves=move("by-loss")), "but shards is None: each worker draws from all"),
        (lambda numbers: run(numbers, Script(lambda epoch: Handed(epoch.rows, epoch.partners(4)))), "must keep one of"),
        (lambda numbers: run(numbers, Script(lambda epoch: Handed(np.array([99]), np.array([0])))), "hand on those al"),
    ],
)
def test_what_can_not_be_is_said(numbers, make, said):
    with pytest.raises(ValueError, match=said):
        make(numbers)


def test_the_suite_finds_policies_that_draw_anew():
    generator = np.random.default_rng()

    def choose(epoch):
        return Handed(generator.permutation(epoch.rows)[:2], epoch.partners(2))

    with pytest.raises(AssertionError, match="run again, its history is another"):
        check_move(Script(choose))
