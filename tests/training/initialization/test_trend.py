import numpy as np
import pytest

from alpa_dejavu.training.initialization import LastLoss, Measure, Trend, judge, measured
from alpa_dejavu.training.initialization._judge import end_of_drop


def curve(steps, drop=5.0, floor_at=20, exponent=0.3):
    """Falls steeply to a knee, then by a power law that goes through 1 there."""
    at = np.arange(1, steps + 1)
    return np.where(at < floor_at, 1 + drop * (1 - at / floor_at), (at / floor_at) ** -exponent)


def unknown(losses):
    return np.full(len(losses), np.nan)


def test_the_trend_after_the_drop_is_followed_to_the_end_of_training():
    losses = curve(200)
    found = measured(losses, unknown(losses), 0, 2000)
    assert 15 <= end_of_drop(np.log2(np.arange(1, 201)), np.log(losses)) <= 30
    assert found.promised == pytest.approx(100**-0.3, rel=0.05)
    assert found.loss == pytest.approx(losses[-1], rel=0.02)
    assert not found.on_plateau
    assert np.isnan(found.relative_gradient)


def test_a_steep_drop_doesnt_promise_what_comes_after_it():
    steep, shallow = curve(120, drop=50.0, exponent=0.02), curve(120, drop=0.5, exponent=0.4)
    promised = [measured(losses, unknown(losses), 0, 1200).promised for losses in (steep, shallow)]
    assert promised[1] < promised[0]


def test_noise_without_a_fall_is_a_plateau_and_promises_what_it_has():
    losses = 2.0 + 0.05 * np.random.default_rng(1).standard_normal(100)
    found = measured(losses, unknown(losses), 0, 10_000)
    assert found.on_plateau
    assert found.promised == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("losses", [[2.0], [2.0, 1.0], [-1.0, -2.0, -2.5, -2.6, -2.7]])
def test_short_and_negative_curves_have_a_measure(losses):
    found = measured(np.array(losses), unknown(losses), 0, 100)
    assert np.isfinite([found.loss, found.promised]).all()
    assert found.last == losses[-1]
    assert found.steps == len(losses)


def test_gradients_of_the_drop_dont_count():
    losses = curve(100)
    gradients = np.where(np.arange(100) < 20, 9.0, 0.5)
    assert measured(losses, gradients, 0, 100).relative_gradient == 0.5


def made(promised, gradient=np.nan, on_plateau=False, last=1.0):
    return Measure(50, last, promised, promised, on_plateau, gradient)


def test_trend_weighs_a_large_gradient_but_not_on_a_plateau():
    alike = {0: made(1.0, 0.1), 1: made(1.01, 0.2), 2: made(1.02, 0.9)}
    assert Trend(0).order(alike) == (0, 1, 2)
    assert Trend(2).order(alike) == (2, 1, 0)
    flat = {**alike, 2: made(1.02, 0.9, on_plateau=True)}
    assert Trend(2).order(flat) == (1, 0, 2)
    assert Trend(2).order({}) == ()


def test_unknown_gradients_leave_the_order_to_the_loss():
    assert Trend(5).order({7: made(1.0), 2: made(2.0), 4: made(0.5)}) == (4, 7, 2)


def test_judges_by_name():
    assert judge("last_loss") == LastLoss()
    assert LastLoss().order({0: made(0.1, last=2.0), 1: made(0.9, last=1.0)}) == (1, 0)
    with pytest.raises(ValueError, match="no judge named 'best'"):
        judge("best")
    with pytest.raises(ValueError, match="gradient_weight is -1"):
        Trend(-1)
