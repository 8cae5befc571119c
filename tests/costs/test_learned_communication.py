"""Learned collectives: recovered from made-up measurements, sound as a communication model; suspect rows are found."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.communication.learned import (
    Collectives,
    FittedCollectives,
    LearnedCommunication,
    Suspect,
    summary,
    suspects,
)
from alpa_dejavu.testing import check_communication_model, example_cluster

NAMES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


def _rows(hosts: float, sizes: tuple[float, ...], lanes: float) -> Collectives:
    grid = [(name, 2.0**power, size) for name in NAMES for size in sizes for power in range(10, 31, 2)]
    name, num_bytes, size = (np.array(each) for each in zip(*grid, strict=True))
    same = np.ones(len(grid))
    return Collectives(name, num_bytes, size, hosts * same, (1 if hosts == 1 else 2) * same, lanes * same)


def _seconds(rows: Collectives) -> np.ndarray:
    between, within = rows.hops
    return 5e-5 + 1e-4 * between + 2e-5 * within + rows.volume_s / 0.8


@pytest.fixture(scope="module")
def learned() -> LearnedCommunication:
    within, across = _rows(1.0, (2.0, 4.0, 8.0), 1e10), _rows(2.0, (2.0, 4.0, 8.0), 1e9)
    return LearnedCommunication(
        FittedCollectives().fit(within, _seconds(within), within.size),
        FittedCollectives().fit(across, _seconds(across), across.size),
    )


@pytest.mark.parametrize("hosts", [1.0, 2.0])
def test_recovers_what_was_measured(learned, hosts):
    rows = _rows(hosts, (2.0, 8.0), 1e10 if hosts == 1 else 1e9)
    predicted = (learned.within if hosts == 1 else learned.across).predict(rows)
    assert np.median(np.abs(predicted.mean / _seconds(rows) - 1)) < 0.05
    assert (predicted.lower <= predicted.mean).all()
    assert (predicted.mean <= predicted.upper).all()
    assert predicted.in_domain.all()
    larger = dataclasses.replace(rows, size=np.full(len(rows), 64.0))
    assert not learned.within.predict(larger).in_domain.any()


def test_conforms(learned):
    check_communication_model(learned)
    check_communication_model(LearnedCommunication(learned.within))


def test_intervals_are_wider_for_groups_that_were_not_fitted(learned):
    cluster = example_cluster(num_hosts=1, devices_per_host=16)
    lower, upper, known = learned.interval("all_reduce", [1e6], Group(cluster, (0,) * 4))
    mean = learned.seconds("all_reduce", [1e6], Group(cluster, (0,) * 4))
    assert (lower <= mean).all()
    assert (mean <= upper).all()
    assert known.all()
    assert not learned.interval("all_reduce", [1e6], Group(cluster, (0,) * 16))[2].any()
    assert not learned.interval("send", [1e6], Group(cluster, (0, 0)))[2].any()


def test_outliers_are_reported_and_left_out():
    rows = _rows(1.0, (2.0, 4.0, 8.0), 1e10)
    seconds = _seconds(rows)
    spoilt = seconds.copy()
    spoilt[[7, 60]] *= [5, 0.2]
    model = FittedCollectives().fit(rows, spoilt, rows.size)
    assert model.outliers.tolist() == [7, 60]
    assert np.abs(model.predict(rows).mean / seconds - 1).max() < 0.3


def test_suspects_are_found_with_their_reason():
    sizes = np.array([1.0, 2, 4, 8, 16, 16, 32, 64])
    seconds = np.array([1.0, 1.5, 3.0, np.nan, -1.0, 4.0, 2.0, 5.0])
    found = suspects(["a"] * 8, sizes, seconds)
    assert found == [
        Suspect(2, "exactly twice the time of half the size"),
        Suspect(3, "not finite"),
        Suspect(4, "not above zero"),
        Suspect(6, "faster than a smaller size"),
    ]
    assert suspects(["a", "b"], np.array([4.0, 4.0]), np.array([1.0, 2.0])) == []
    assert summary(found).count(",") == 3
    assert suspects(["a", "a"], np.array([4.0, 4.0]), np.array([1.0, 1.1])) == [
        Suspect(1, "a size that was there already")
    ]


def test_within_and_across_are_fitted_apart():
    rows = _rows(1.0, (2.0, 4.0), 1e10)
    mixed = dataclasses.replace(rows, hosts=np.where(rows.size == 4, 2.0, 1.0))
    with pytest.raises(ValueError, match="fitted apart"):
        FittedCollectives().fit(mixed, _seconds(rows), rows.size)
    with pytest.raises(ValueError, match="leave the suspects out"):
        FittedCollectives().fit(rows, np.full(len(rows), np.inf), rows.size)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.floats(10, 30), st.floats(0.01, 100), st.sampled_from([2.0, 4.0, 8.0]))
def test_twice_the_bytes_on_twice_the_rate_take_as_long(learned, name, power, factor, size):
    one = np.ones(1)
    rows = Collectives(np.array([name]), 2.0**power * one, size * one, one, one, 1e10 * one)
    scaled = dataclasses.replace(rows, num_bytes=rows.num_bytes * factor, lanes=rows.lanes * factor)
    assert learned.within.predict(scaled).mean == pytest.approx(learned.within.predict(rows).mean, rel=1e-9)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20))
def test_a_profile_that_grows_by_less_than_double_is_above_suspicion(steps):
    sizes = 2.0 ** np.arange(len(steps))
    seconds = np.cumprod(1 + 0.9 / (1 + np.array(steps)))
    assert suspects(["a"] * len(steps), sizes, seconds) == []
