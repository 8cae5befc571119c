"""The seconds of a module are those of its collectives and products, read off the measurements."""
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


def test_other_groups_of_the_same_size_stand_in():
    assert estimate_cost(from_text(MODULE), _costs(((4, 5, 6, 7),)), 4) == pytest.approx(1.5)


def test_alone_nobody_is_talked_to():
    alone = MODULE.replace("{{0,1,2,3}}", "{{0},{1},{2},{3}}")
    assert estimate_cost(from_text(alone), _costs(), 4) == pytest.approx(0.5)
