"""The seconds of a module are those of its collectives and products, read off the measurements."""

import math

import pytest

from alpa_stock_jax.hlo_cost import MeasuredCosts, estimate_cost
from hlo_tools import from_text

ALL = ((0, 1, 2, 3),)
LINE = ((0, 1.0), (100, 2.0), (1000, 11.0))
MODULE = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { a = f32[10,10] parameter(0)
  x = f32[10,10] all-reduce(a), channel_id=7, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  y = f32[10,10] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[10,10]) tuple(y) }"""


def _costs(groups=ALL, kind="f32", points=LINE):
    return MeasuredCosts({"all-reduce": {(groups, kind): points}}, {((), "f32"): ((0, 0.0), (4000, 1.0))})


def test_an_all_reduce_and_a_product():
    assert estimate_cost(from_text(MODULE), _costs(), 4) == pytest.approx(1.0 + 0.5)


def test_gradients_cost_once_in_all_micro_batches():
    assert estimate_cost(from_text(MODULE), _costs(), 4, 8, [7]) == pytest.approx(1.0 / 8 + 0.5)
    assert estimate_cost(from_text(MODULE), _costs(), 4, 8, [6]) == pytest.approx(1.0 + 0.5)


@pytest.mark.parametrize("costs", [_costs(((0, 1), (2, 3))), _costs(kind="f16")])
def test_what_was_never_measured_is_an_error_that_says_so(costs):
    with pytest.raises(ValueError, match="no all-reduce of f32 was measured"):
        estimate_cost(from_text(MODULE), costs, 4)


def test_measurements_that_failed_are_left_out():
    points = ((0, 1.0), (50, math.inf), (100, 2.0), (1000, 11.0))
    assert estimate_cost(from_text(MODULE), _costs(points=points), 4) == pytest.approx(1.5)
    assert estimate_cost(from_text(MODULE), _costs(points=((0, math.inf),)), 4) == math.inf
