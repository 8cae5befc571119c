"""Moving samples while a run goes: who has what, bytes by hand, the same again, and going on after an interruption."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.data import MOVES, DataMove, Epoch, Handed, move, split
from alpa_dejavu.playground.data._changing_moves import Evolution
from alpa_dejavu.playground.fault import Crash, LinkRate
from alpa_dejavu.playground.testing import check_move
from alpa_dejavu.testing import example_cluster

CASES = [
    *(move(name) for name in MOVES if name != "scheduled"),
    move("random-share", share=1.0),
    move("by-loss", which="lowest"),
    move("scheduled", move=move("by-conflict"), first=0.5, last=0.01, epochs=3),
]


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


def test_the_suite_finds_policies_that_draw_anew():
    generator = np.random.default_rng()

    def choose(epoch):
        return Handed(generator.permutation(epoch.rows)[:2], epoch.partners(2))

    with pytest.raises(AssertionError, match="run again, its history is another"):
        check_move(Script(choose))


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
    assert moved.notes == ("samples moved: 20, 160 bytes, and 0 bytes to choose them",)
    told = run(numbers, Script(lambda epoch: epoch.tell((epoch.worker + 1) % 4, "x", 1, 100.0) or nothing()))
    assert told.num_bytes - still.num_bytes == 2000


def test_a_moved_sample_is_drawn_by_its_new_worker_alone_once_its_bytes_have_passed(numbers):
    # Worker 0 hands all but one to worker 3, over a link between hosts of 1e9 bytes a second: 3 samples of 2.5e9 bytes.
    held = {}

    def choose(epoch):
        held[epoch.worker, epoch.number] = epoch.rows.tolist()
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


def test_a_lost_worker_keeps_what_it_had_and_samples_on_their_way_are_lost(numbers):
    held = {}

    def choose(epoch):
        held[epoch.worker, epoch.number] = sorted(epoch.rows.tolist())
        return Handed(epoch.rows[1:], np.full(3, 3)) if (epoch.worker, epoch.number) == (0, 1) else nothing()

    lost = run(numbers, Script(choose), sample_bytes=2.5e9, steps=24, faults=[Crash(3, 5.0, 7.0)])
    assert "3 samples are on their way at the end, or were lost with messages" in lost.notes
    assert {tuple(rows) for (worker, _), rows in held.items() if worker == 3} == {(12, 13, 14, 15)}
    cut = run(numbers, Script(choose), steps=24, faults=[LinkRate((0, 1), 0.0)])
    assert any("samples are on their way" in note for note in cut.notes)


def test_partners_are_shared_out(numbers):
    drawn = {}

    def choose(epoch):
        drawn[epoch.number, epoch.worker] = epoch.partners(5).tolist(), epoch.askers(5).tolist()
        return nothing()

    run(numbers, Script(choose))
    for number in range(1, 6):
        for slot in range(5):
            partners = {worker: drawn[number, worker][0][slot] for worker in range(4)}
            assert sorted(partners.values()) == [0, 1, 2, 3]
            assert all(worker != partner for worker, partner in partners.items())
            assert {drawn[number, partner][1][slot]: partner for partner in range(4)} == partners


@pytest.mark.parametrize(("which", "order"), [("highest", -1), ("lowest", 1)])
def test_by_loss_hands_on_those_of_the_highest_or_lowest_loss(numbers, which, order):
    chosen = move("by-loss", share=0.5, which=which)

    def choose(epoch):
        handed = chosen.choose(epoch)
        # The loss of number k is k times the parameter.
        np.testing.assert_allclose(epoch.losses(), epoch._params[0] * epoch.rows, rtol=1e-5)
        if epoch._params[0] > 0 and epoch.number == 1:
            assert handed.rows.tolist() == sorted(epoch.rows.tolist(), key=lambda row: order * row)[:2]
        return handed

    run(numbers, Script(choose), own_starts=False)


def test_by_conflict_hands_on_what_points_against_the_partners_gradients():
    # Even samples pull the parameter one way, odd ones the other: each worker has three of one kind, one of the other.
    signs = np.where(np.arange(16) % 2, -1.0, 1.0).astype(np.float32)

    def loss(params, batch):
        return jnp.mean(batch[0] * params[0])

    pulls = Problem("pulls", lambda key: jnp.zeros(1), loss, None, (signs, signs), (signs, signs))
    evens, odds = list(range(0, 16, 2)), list(range(1, 16, 2))
    shards = [[*evens[:3], odds[6]], [*evens[3:6], odds[7]], [*odds[:3], evens[6]], [*odds[3:6], evens[7]]]
    chosen, seen = move("by-conflict", share=0.25), []

    def choose(epoch):
        digest = epoch.memory.get(("mean gradient", epoch.number))
        own = signs[epoch.rows]
        handed = chosen.choose(epoch)
        if digest is not None and len({*own}) == 2 and np.abs(digest).max() > 1e-3:
            direction = epoch._mover.gradients(np.zeros(1, np.float32), np.array([0]), 64)[0]
            seen.append(signs[handed.rows[0]] * np.sign(digest @ direction))
        return handed

    run(pulls, Script(choose), shards=shards, steps=40)
    assert len(seen) > 10
    assert set(seen) == {-1.0}


def test_metrics_take_their_seconds_and_schedules_their_shares(numbers):
    plain, loss, conflict = (
        run(numbers, one).busy_s for one in (None, move("by-loss", share=0.01), move("by-conflict", share=0.01))
    )
    # Five epochs; four samples are two batches of a second each, and a loss is a third of a gradient.
    np.testing.assert_allclose(loss - plain, 5 * 2 / 3)
    np.testing.assert_allclose(conflict - plain, 5 * 2)
    counts = []

    def choose(epoch):
        handed = move("scheduled", move=move("random-share"), first=0.75, last=0.25, epochs=4).choose(epoch)
        counts.append((epoch.number, len(handed.rows)))
        return handed

    run(numbers, Script(choose))
    assert set(counts) == {(1, 3), (2, 2), (3, 2), (4, 2), (5, 1)}  # 3, 2.5, 2, 1.5 and 1, halves to the even number


def test_evolution_keeps_a_child_that_gains_and_drops_one_that_does_not():
    begun = Evolution(np.zeros(2), 1.0, 5.0, np.zeros(2))
    trial = begun.after(4.0, np.array([1.0, 0.0]))  # the parent gained 1
    assert trial.shown.tolist() == [1.0, 0.0]
    judged = trial.after(2.5, np.ones(2))  # the child gained 1.5; the parent again
    assert judged.shown.tolist() == [0.0, 0.0]
    kept = judged.after(1.5, np.ones(2))  # the parent gained 1: the child is better
    assert (kept.parent.tolist(), kept.shown.tolist(), kept.width) == ([1.0, 0.0], [1.0, 0.0], 1.5)
    dropped = trial.after(3.9, np.ones(2)).after(2.9, np.array([0.0, 1.0]))  # the child gained 0.1
    assert (dropped.parent.tolist(), dropped.width) == ([0.0, 0.0], pytest.approx(1.5**-0.25))
    assert dropped.shown.tolist() == [0.0, pytest.approx(1.5**-0.25)]


def test_evolution_finds_which_of_two_directions_lowers_the_level():
    # Each period the level falls by 1 / (1 + distance to (2, -1)): a (1 + 1) strategy comes near.
    draw, level = np.random.default_rng(0), 0.0
    state = Evolution(np.zeros(2), 1.0, level, np.zeros(2))
    for _ in range(400):
        level -= 1 / (1 + float(np.linalg.norm(state.shown - [2.0, -1.0])))
        state = state.after(level, draw.standard_normal(2))
    assert np.linalg.norm(state.parent - [2.0, -1.0]) < 0.1


@pytest.mark.parametrize("name", ["random-share", "evolved"])
def test_an_interrupted_run_that_moves_samples_goes_on_to_the_same_history(tmp_path, monkeypatch, name):
    digits, cluster = problem("digits-mlp"), example_cluster(1, 4)
    job = Job(digits, 0.01, shards=split("by-label"), moves=move(name), spread=0.1)
    whole = simulate(job, cluster, "gossip", until=Until(steps=70), seed=2, looks=4)
    again = simulate(job, cluster, "gossip", until=Until(steps=70), seed=2, looks=4)
    assert whole.same(again)
    from alpa_dejavu.playground._learner import JaxLearner

    computed, inner = [], JaxLearner._computed

    def stops(learner, chosen):
        computed.append(1)
        if len(computed) == 40:
            raise KeyboardInterrupt
        return inner(learner, chosen)

    monkeypatch.setattr(JaxLearner, "_computed", stops)
    with pytest.raises(KeyboardInterrupt):
        simulate(job, cluster, "gossip", until=Until(steps=70), seed=2, looks=4, folder=tmp_path)
    assert simulate(job, cluster, "gossip", until=Until(steps=70), seed=2, looks=4, folder=tmp_path).same(whole)
    other = dataclasses.replace(job, moves=move("random-share", share=0.2))
    with pytest.raises(ValueError, match="holds the run"):
        simulate(other, cluster, "gossip", until=Until(steps=70), seed=2, looks=4, folder=tmp_path)


def test_full_shuffling_gives_each_worker_all_labels():
    digits = problem("digits-mlp")
    labels = {}

    def choose(epoch: Epoch):
        labels[epoch.number, epoch.worker] = len(np.unique(digits.train[1][epoch.rows]))
        return move("random-share", share=1.0).choose(epoch)

    job = Job(digits, 0.01, 64, shards=split("by-label", labels=3), moves=Script(choose))
    simulate(job, example_cluster(1, 4), "all-reduce", until=Until(steps=25), looks=0)
    assert {labels[1, worker] for worker in range(4)} == {3}
    assert all(labels[3, worker] == 10 for worker in range(4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda numbers: move("random-share", share=0.0), r"share is 0\.0, but must be above 0 and at most 1"),
        (lambda numbers: move("by-loss", which="most"), "which is 'most', but must be one of 'highest', 'lowest'"),
        (lambda numbers: move("evolved", width=0.0), r"width is 0\.0, but must be"),
        (lambda numbers: move("scheduled", move=move("scheduled", move=move("by-loss"))), "but must have a share"),
        (lambda numbers: move("by-los"), "there is no move named 'by-los'"),
        (lambda numbers: Job(None, 1.0, num_bytes=1, moves=move("by-loss")), "there are no samples, losses or gradie"),
        (lambda numbers: Job(numbers, 1.0, moves=move("by-loss")), "but shards is None: each worker draws from all"),
        (lambda numbers: Job(numbers, 1.0, sample_bytes=-1.0), r"sample_bytes is -1\.0, but must be"),
        (lambda numbers: run(numbers, Script(lambda epoch: Handed(epoch.rows, epoch.partners(4)))), "must keep one of"),
        (lambda numbers: run(numbers, Script(lambda epoch: Handed(np.array([99]), np.array([0])))), "hand on those al"),
    ],
)
def test_what_can_not_be_is_said(numbers, make, said):
    with pytest.raises(ValueError, match=said):
        make(numbers)


def test_a_worker_alone_keeps_its_samples(numbers):
    job = Job(numbers, 1.0, 2, shards=[range(16)], moves=move("evolved"))
    alone = simulate(job, example_cluster(1, 1), "all-reduce", until=Until(steps=30), looks=0)
    assert alone.num_bytes == 0
    jax.tree.map(np.isfinite, alone.params)
