"""Layers that were profiled as a whole: what they take on other shares of a micro-batch, and on other devices."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs.latency import AnalyticLatency, LayerTimes, ProfiledLayers, profiled_pass
from alpa_dejavu.problem import Operators
from alpa_dejavu.testing import check_latency_model, example_cluster
from models import product

DEVICE = example_cluster(1).hosts[0].device
TIMES = LayerTimes({1: (np.array([1.0, 4.0]), np.array([1.0, 2.5])), 2: (np.ones(1), np.array([0.7]))})
MODEL = ProfiledLayers({DEVICE.name: {"block forward": TIMES}})


@pytest.mark.parametrize(
    ("ways", "samples", "seconds"),
    [((1, 1), 4, 2.5), ((2, 1), 4, 1.5), ((4, 1), 4, 1.0), ((8, 1), 4, 0.5), ((1, 1), 8, 5.0), ((2, 2), 4, 1.4)],
)
def test_seconds_go_by_the_samples_of_a_replica_and_by_its_width(ways, samples, seconds):
    found = MODEL.predict(profiled_pass("block forward", samples, 10).split(*ways), DEVICE)
    assert found.total_s == pytest.approx(seconds)


def test_the_model_is_sound():
    check_latency_model(MODEL)


def test_another_device_layer_or_width_is_named():
    asked = profiled_pass("block forward", 1, 10)
    with pytest.raises(ValueError, match="layer is 'block forward', but must be one that was profiled on other"):
        MODEL.predict(asked, dataclasses.replace(DEVICE, name="other"))
    with pytest.raises(ValueError, match="tensor_parallel is 4, but must be one that was profiled: 1, 2"):
        MODEL.predict(asked.split(1, 4), DEVICE)


def test_what_was_not_profiled_goes_by_the_roofline():
    both = Operators.joined([product(1e9), profiled_pass("block forward", 1, 10)])
    found = MODEL.predict(both, DEVICE).mean_s
    assert found.tolist() == [AnalyticLatency().predict(product(1e9), DEVICE).total_s, 1.0]
