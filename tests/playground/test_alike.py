"""Functions that do the same are compiled once."""

import optax
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground._gradient import SameCode, programs
from alpa_dejavu.testing import example_cluster


def made(value, *more, default=None):
    def inner(x, y=default):
        return value, more, x, y

    return inner


SAME = [
    (made(1), made(1)), (made((1, "a")), made((1, "a"))), (made(made(0.5)), made(made(0.5))),
    (made(1, default=2), made(1, default=2)),
]  # fmt: skip


@pytest.mark.parametrize("pair", SAME)
def test_functions_that_do_the_same(pair):
    one, other = (SameCode((each,)) for each in pair)
    assert one == other
    assert hash(one) == hash(other)


def test_problems_and_optimizers_made_anew_are_compiled_once():
    first = programs(problem("digits-mlp"), optax.adam(1e-3))
    assert programs(problem("digits-mlp"), optax.adam(1e-3)) is first
    assert programs(problem("digits-mlp"), optax.adam(2e-3)) is not first
    assert programs(problem("digits-cnn"), optax.adam(1e-3)) is not first
    job, cluster = Job(problem("digits-mlp"), 1.0, 4, optax.sgd(0.5)), example_cluster(2, 1)
    runs = [simulate(job, cluster, "all-reduce", until=Until(steps=2)), None]
    again = Job(problem("digits-mlp"), 1.0, 4, optax.sgd(0.5))
    runs[1] = simulate(again, cluster, "all-reduce", until=Until(steps=2))
    assert runs[0].same(runs[1])
