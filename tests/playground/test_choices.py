"""Choices made while training: derivatives, shares, seconds, and what is left to the slicers."""

import dataclasses
import pathlib
import re

import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.choices import (
    Choice,
    Mixing,
    configure_while_training,
    look_ahead_gradient,
    planned_seconds,
)
from alpa_dejavu.playground.exchanges import AllReduce, Gossip, LocalSteps
from alpa_dejavu.testing import example_cluster

GRADIENT_S = 0.01
ROWS = (
    (Choice("sum", AllReduce()), Choice("mix", Gossip()), Choice("local", LocalSteps(4))),
    (Choice("few", changes={"batch": 4, "compute_s": GRADIENT_S}),
     Choice("many", changes={"batch": 16, "compute_s": 3 * GRADIENT_S})),
)  # fmt: skip
RATE = optax.sgd(0.3)


@pytest.fixture(scope="module")
def digits():
    return problem("digits-mlp")


@pytest.fixture(scope="module")
def job(digits):
    return Job(digits, GRADIENT_S, optimizer=RATE, spread=0.1)


def quadratic(matrix):
    """Half of x'Ax of the parameters, less a batch's mean."""

    def loss(params, batch):
        apart = params - batch[0].mean(axis=0)
        return 0.5 * apart @ matrix @ apart

    data = np.zeros((4, len(matrix)), np.float32), np.zeros(4, np.float32)
    return Problem("quadratic", lambda key: np.ones(len(matrix), np.float32), loss, None, data, data)


@pytest.fixture(scope="module")
def bowl():
    draw = np.random.default_rng(0)
    root = draw.standard_normal((5, 5))
    return (root @ root.T / 5).astype(np.float32)


def batch(center):
    return np.tile(np.float32(center), (3, 1)), np.zeros(3, np.float32)


def test_a_share_s_derivative_is_the_slope_along_its_displacement(bowl):
    draw = np.random.default_rng(1)
    params, moved = draw.standard_normal(5).astype(np.float32), draw.standard_normal((3, 5)).astype(np.float32)
    center = draw.standard_normal(5)
    found = look_ahead_gradient(quadratic(bowl), params, moved, batch(center))
    np.testing.assert_allclose(found, moved @ (bowl @ (params - center)), rtol=1e-4)


def test_a_mix_learns_hardens_and_pays_for_itself(job):
    cluster = example_cluster(3, 1)
    run = configure_while_training(job, cluster, ROWS, until=Until(seconds=6.0), seed=1)
    live = (run.shares > 0).sum(axis=1)
    np.testing.assert_allclose(run.shares.sum(axis=1), 1.0)
    assert live[0] == 6
    assert live[-1] == 1
    assert (np.diff(live) <= 0).all()
    assert run.shares[-1].argmax() == run.options.index(run.chosen)
    assert run.time_s[-1] == pytest.approx(6.0)
    assert (np.diff(run.time_s) > 0).all()
    assert run.loss[-1] < 0.5 * run.loss[0]
    # A segment takes its share of as many seconds as there are options; a look ahead computes one gradient.
    slowest_s = 3 * max(planned_seconds(option, cluster, 4 * 2410) for option in run.options)
    looks_s = (len(live) - 1) * GRADIENT_S
    assert run.mixing_s >= live[:-1].sum() * slowest_s + looks_s
    assert run.mixing_s < 1.1 * (live[:-1].sum() * slowest_s + looks_s)


def test_the_page_s_example_chooses_one_of_its_rows(capsys):
    page = pathlib.Path(__file__).parents[2] / "docs" / "concepts" / "playground-workers.md"
    _, section = page.read_text(encoding="utf-8").split("## Choosing while training")
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(block, {"__name__": "example"})
    assert capsys.readouterr().out.partition(",")[0] in ("sum", "mix", "local")


@pytest.mark.parametrize(("rows", "said"), [
    ([], "rows is"), ([[Choice("a", "gossip")], []], "at least one choice each"),
    ([[Choice("a")]], "exactly one row"), ([[Choice("a", "gossip"), Choice("b")]], "exactly one row"),
    ([[Choice("a", "gossip", {"optimizer": None})]], r"changes \['optimizer'\]"),
])  # fmt: skip
def test_rows_that_can_t_be_are_said(job, rows, said):
    with pytest.raises(ValueError, match=said):
        configure_while_training(job, example_cluster(1, 2), rows, until=Until(seconds=1.0))


def test_jobs_ends_and_settings_that_can_t_be_are_said(job):
    rows, cluster, until = [[Choice("a", "gossip")]], example_cluster(1, 2), Until(seconds=1.0)
    with pytest.raises(ValueError, match="problem is None"):
        configure_while_training(Job(None, 1.0, num_bytes=1), cluster, rows, until=until)
    with pytest.raises(ValueError, match="keeps moments"):
        configure_while_training(dataclasses.replace(job, optimizer=optax.adam(0.1)), cluster, rows, until=until)
    with pytest.raises(ValueError, match="steps is 3, but must be None"):
        configure_while_training(job, cluster, rows, until=Until(steps=3))
    with pytest.raises(ValueError, match="weight_of_seconds is -1"):
        configure_while_training(job, cluster, rows, until=until, weight_of_seconds=-1)
    for more, said in (({"rate": 0}, "rate is 0"), ({"drop": 0}, "drop is 0"), ({"gradients": 0}, "gradients is 0")):
        with pytest.raises(ValueError, match=said):
            Mixing(**more)


def test_a_training_goes_on_from_another_one_s_parameters(job):
    cluster, until = example_cluster(1, 3), Until(steps=5)
    first = simulate(job, cluster, AllReduce(), until=until, seed=1)
    second = simulate(job, cluster, AllReduce(), until=until, seed=2, start=first.params)
    assert second.loss[0] == first.loss[-1]
    with pytest.raises(ValueError, match=r"start has the shape \(3,\), but must have \(2410,\)"):
        simulate(job, cluster, AllReduce(), until=until, start=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"own_starts must be False"):
        simulate(dataclasses.replace(job, own_starts=True), cluster, AllReduce(), until=until, start=first.params)
