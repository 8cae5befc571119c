"""Unlike workers: batches of their own size, and units of layers that small ones leave out."""

from __future__ import annotations

import re

import jax
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from alpa_dejavu.plans import write_plan
from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground._problem import drop_multipliers
from alpa_dejavu.playground.dropping import affordable, pareto_front
from alpa_dejavu.problem import Device
from alpa_dejavu.testing import example_cluster
from plans import example_plan, stage
from scenario_texts import check_refused
from seen_training import simulated

SIZES = (16, 4, 7)
CLUSTER = example_cluster(3, 1)
SMALL = Device("small", 2**30, {"float32": 1e8}, 1e8, 1e9)
DIGITS, DESCENT = problem("digits-mlp"), optax.sgd(0.3)


def test_one_by_one_equals_side_by_side():
    jobs = [Job(DIGITS, 0.01, SIZES, DESCENT, side_by_side=one, drop=((0.0,), (0.5,), (0.5,))) for one in (True, False)]
    runs = [simulate(job, CLUSTER, "async-server", until=Until(steps=4), seed=2) for job in jobs]
    assert np.abs(runs[0].params - runs[1].params).max() < 1e-6


def test_a_block_that_is_left_out_is_as_if_it_werent_there():
    trained = problem("digits-residual")
    drawn = np.random.default_rng(1)
    tree = jax.tree.map(
        lambda leaf: np.asarray(drawn.normal(size=leaf.shape), np.float32), trained.init(jax.random.PRNGKey(0))
    )  # blocks begin as the identity; here they don't
    factors = ravel_pytree(tree)[1](drop_multipliers(trained, tree, (0.0, 1.0, 0.5), drawn))
    there = jax.tree.map(lambda leaf, factor: leaf * factor, tree, factors)
    (kept,) = np.nonzero(factors["block 3 in"]["bias"])
    assert len(kept) == 16
    assert factors["block 3 out"]["kernel"].max() == 2.0  # the other half stands for all
    narrow = {part: value for part, value in there.items() if not part.startswith("block 2")}
    narrow["block 3 in"] = {"kernel": there["block 3 in"]["kernel"][:, kept], "bias": there["block 3 in"]["bias"][kept]}
    into = np.isin(np.tile(np.arange(32), 9), kept)
    narrow["block 3 out"] = {**there["block 3 out"], "kernel": there["block 3 out"]["kernel"][into]}
    small = trained.narrowed((32, 0, 16))
    assert jax.tree.map(np.shape, small.init(jax.random.PRNGKey(0))) == jax.tree.map(np.shape, narrow)
    inputs, targets = (each[:8] for each in trained.train)
    whole = trained.logits(there, inputs)
    # They are added up in other orders, in single precision.
    assert np.abs(whole - small.logits(narrow, inputs)).max() < 1e-6 * np.abs(whole).max()
    gradient = jax.grad(trained.loss)(there, (inputs, targets))
    looked = jax.grad(small.loss)(narrow, (inputs, targets))
    assert np.abs(gradient["stem"]["kernel"] - looked["stem"]["kernel"]).max() < 1e-2


def test_each_parameter_is_averaged_over_those_that_had_it():
    """Two workers on the same samples: one leaves half of the units out; theirs are those of the other alone."""
    descent = optax.sgd(1.0)

    def moved(drop, hosts):
        job = Job(DIGITS, 1.0, 4, descent, drop=drop, shards=([7],) * hosts)  # one sample, so that both draw the same
        run = simulated(job, (hosts, 1), "server", steps=1, seed=5, looks=0)
        return np.asarray(ravel_pytree(DIGITS.init(jax.random.PRNGKey(5)))[0]) - run.params

    whole, half, both = moved(None, 1), moved(((0.5,),), 1), moved(((0.5,), (0.0,)), 2)
    had = half != 0
    assert 0 < had.sum() < (whole != 0).sum()
    assert np.abs(both[had] - (half + whole)[had] / 2).max() < 1e-6
    alone, as_one_of_two = (np.abs(both[~had] - share * whole[~had]) < 1e-6 for share in (1.0, 0.5))
    # Of a unit that the first one had a gradient may be 0 by itself; then it counts as one of two.
    assert (alone | as_one_of_two).all()
    assert (alone & ~as_one_of_two).any()


def test_the_front_has_what_no_other_beats():
    pytest.importorskip("optuna")
    front = pareto_front(DIGITS, SMALL, 8, optimizer=DESCENT, trials=6, steps=8, seeds=(0,))
    assert front == pareto_front(DIGITS, SMALL, 8, optimizer=DESCENT, trials=6, steps=8, seeds=(0,))
    figures = [(one.seconds, one.memory_bytes, one.loss) for one in front]
    for one in figures:
        beaten = [other for other in figures if other != one and all(a <= b for a, b in zip(other, one, strict=True))]
        assert not beaten
    middle = front[len(front) // 2]
    chosen = affordable(front, middle.seconds, middle.memory_bytes)
    assert chosen.loss <= middle.loss
    assert chosen.seconds <= middle.seconds
    assert affordable(front).loss == min(one.loss for one in front)
    with pytest.raises(ValueError, match=r"no vector takes at most 0 s.*afford more"):
        affordable(front, 0.0)
    with pytest.raises(ValueError, match="chain is empty"):
        pareto_front(problem("sparse-least-squares"), SMALL)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"drop": ((0.5, 0.5),)}, "drop[0] is (0.5, 0.5), but must be 1 shares"),
        ({"problem": problem("digits-residual"), "drop": ((0.0, 1.1, 0.0),)}, "drop[0] is 1.1, but must be at least 0"),
        ({"problem": problem("sparse-least-squares"), "drop": ((),)}, "has no layer whose units may be left out"),
    ],
)
def test_wrong_jobs_are_told(wrong, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Job(**{"problem": DIGITS, "compute_s": 1.0, **wrong})


SCENARIO = """\
version: 1
problem: digits-mlp
cluster: {name: p3.8xlarge, devices_per_host: 2}
compute_s: predicted
batch: [24, 8]
drop: [[0], [0.5]]
exchanges: [all-reduce]
until: {steps: 2}
"""


PIPELINES = """\
version: 1
num_bytes: 1e6
cluster: {name: p3.16xlarge, hosts: 5}
workers:
  plans: [wide.json, narrow.json]
compute_s: planned
exchanges: [all-reduce]
until: {steps: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")
    hosts = tuple(f"p3.16xlarge-{n}" for n in range(2))
    stages = tuple(stage((n, n), hosts=(host,)) for n, host in enumerate(hosts))
    write_plan(example_plan(stages=stages), folder / "wide.json")
    write_plan(example_plan(step_s=0.5), folder / "narrow.json")
    (folder / "broken.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (PIPELINES, "wide.json", "none.json", "none.json ca"),
        (PIPELINES, "[wide.json, narrow.json]", "[wide.json]\n  copies: 3", "copies is 3, but must be at most 2"),
        (PIPELINES, "[wide.json, narrow.json]", "[]", "workers.plans is [], but must be a list of plan files"),
        (PIPELINES, "  plans: [wide.json, narrow.json]", "  copies: 2", "both or neither of hosts and plans"),
        (PIPELINES, "  plans: [wide.json, narrow.json]", "  hosts: [0]", "line 6: compute_s is 'planned', but must be"),
        (PIPELINES, "  plans: [wide.json, narrow.json]", "  hosts: [0]\n  copies: 2", "copies is there without plans"),
        (PIPELINES, "compute_s: planned", "compute_s: 0.1", "compute_s is 0.1, but must be 'planned' where workers"),
        (SCENARIO, "[24, 8]", "[24, 8, 8]", "line 5: job: batch is given for 3 workers, but must be for 2"),
        (SCENARIO, "[[0], [0.5]]", "[[0], [1]]", "line 6: job: drop[1] is 1, but must be at least 0 and below 1"),
        (SCENARIO, "digits-mlp", "text-gpt", "line 6: job: drop is given, but a job of text-gpt has no layer"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(folder, text, old, new, said):
    check_refused(folder, text, old, new, said)


def test_vectors_leave_out_whole_blocks_and_units():
    pytest.importorskip("optuna")
    residual = problem("digits-residual").narrowed((4, 8))
    settings = {"optimizer": DESCENT, "trials": 12, "steps": 4, "seeds": (0,)}
    blocks, both = (pareto_front(residual, SMALL, 8, parts=parts, **settings) for parts in ("blocks", "both"))
    assert {rate for one in blocks for rate in one.rates} <= {0.0, 1.0}
    assert blocks[0].rates == (1.0, 1.0)  # nothing takes less
    assert any(1.0 in one.rates and any(0 < rate < 1 for rate in one.rates) for one in both)
    with pytest.raises(ValueError, match="blocks is empty"):
        pareto_front(DIGITS, SMALL, parts="blocks")
