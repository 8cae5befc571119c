"""The fits of physical models with deviations, on made-up measurements whose parameters are known."""

import numpy as np
import pytest

from fitting import Deviation, Parameter, Physics, fit
from trials._bandwidth import BandwidthFit
from trials._sailor_memory import PeakMemory


class Line(Physics):
    """start_s + work / rate, with a deviation of each kind."""

    parameters = (Parameter("start_s", 0.1, 2.0), Parameter("rate", 1.0, 2.0))
    deviations = (Deviation("kind", {"kind": 1.0}, 0.1, 0.1),)

    def log_value(self, values, deviations, rows):
        return np.log(values["start_s"] + rows["work"] / values["rate"]) + deviations["kind"]


def lines(noise=0.02, num_kinds=8, size=200):
    rng = np.random.default_rng(0)
    rows = {"work": rng.uniform(1, 100, size), "kind": rng.integers(0, num_kinds, size) * 10.0}
    off = rng.normal(0, 0.1, num_kinds)[(rows["kind"] / 10).astype(int)]
    return rows, np.exp(np.log(0.5 + rows["work"] / 20) + off + rng.normal(0, noise, size))


def chosen(rows, where):
    return {name: column[where] for name, column in rows.items()}


def test_parameters_are_found_again():
    values = fit(Line(), *lines()).values
    assert values["rate"] == pytest.approx(20, rel=0.15)
    assert values["start_s"] == pytest.approx(0.5, rel=0.3)


def test_outliers_move_nothing():
    rows, measured = lines()
    spoiled = measured.copy()
    spoiled[::20] *= 5
    clean, robust = fit(Line(), rows, measured), fit(Line(), rows, spoiled)
    assert robust.values["rate"] == pytest.approx(clean.values["rate"], rel=0.05)


def test_the_spread_grows_for_programs_that_were_never_seen():
    rows, measured = lines()
    fitted = fit(Line(), rows, measured)
    _, seen = fitted.predict({"work": np.array([50.0]), "kind": np.array([0.0])})
    _, unseen = fitted.predict({"work": np.array([50.0]), "kind": np.array([500.0])})
    assert unseen > 2 * seen


def test_intervals_hold_on_groups_that_were_left_out():
    rows, measured = lines(num_kinds=40, size=800)
    inside = []
    for kind in np.unique(rows["kind"])[::4]:
        held = rows["kind"] == kind
        fitted = fit(Line(), chosen(rows, ~held), measured[~held], rows["kind"][~held].tolist())
        mean, spread = fitted.predict(chosen(rows, held))
        inside.append(np.abs(np.log(measured[held]) - mean) < 1.6449 * spread)
    assert 0.7 <= np.concatenate(inside).mean() <= 1.0


def test_a_model_that_is_right_is_hardly_widened():
    rows, measured = lines(num_kinds=40, size=800)
    groups = rows["kind"].tolist()
    once = fit(Line(), rows, measured, groups).widening[0.0]
    assert 0.6 < once < 1.6


def test_sources_have_noise_of_their_own():
    rows, measured = lines(noise=0.01)
    rows["source"] = (np.arange(len(measured)) % 2).astype(float)
    rng = np.random.default_rng(1)
    measured = measured * np.exp(np.where(rows["source"] > 0, rng.normal(0, 0.2, len(measured)), 0))
    noise = fit(Line(), rows, measured).noise
    assert noise[1.0] > 5 * noise[0.0]


@pytest.mark.parametrize("wrong", [[], [1.0, 0.0], [1.0, np.nan], [np.inf]])
def test_what_cant_be_measured_is_refused(wrong):
    size = len(wrong)
    with pytest.raises(ValueError, match="positive numbers"):
        fit(Line(), {"work": np.ones(size), "kind": np.zeros(size)}, np.array(wrong))


def test_kinds_of_memory_add_up_to_the_peak():
    rng = np.random.default_rng(0)
    rows = {name: rng.uniform(1e9, 4e9, (30, 3)) for name in ("parameter_bytes", "activation_bytes")}
    rows |= {"in_flight": np.broadcast_to([3.0, 2.0, 1.0], (30, 3)), "logit_bytes": np.zeros((30, 3))}
    rows |= {"dp": np.full(30, 2.0)}
    values = {parameter.name: parameter.start for parameter in PeakMemory.parameters}
    none = {kind.name: np.zeros(30) for kind in PeakMemory.deviations}
    whole = sum(PeakMemory().by_kind(values, rows).values()).max(axis=1)
    assert np.exp(PeakMemory().log_value(values, none, rows)) == pytest.approx(whole)


def test_a_bandwidth_fit_that_is_none_is_refused():
    with pytest.raises(ValueError, match="largest bytes/s"):
        BandwidthFit.of([1.0, 2.0])
