"""What depends on nothing but the partition is computed for all partitions, as XLA computes it."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.sharding.hlo.graph import HloGraph
from alpa_stock_jax.hlo_scatter import values_by_partition
from hlo_tools import from_text, run_partitions


def _module(lines):
    return from_text("HloModule m\nENTRY e { u = u32[] partition-id()\n  i = s32[] convert(u)\n" + lines + " }")


def _compare(module):
    graph = HloGraph(module)
    found = values_by_partition(graph, graph.operand(graph.root, 0), 4)
    (expected,) = run_partitions(module, 4)
    np.testing.assert_array_equal(found, [int(value) for value in expected])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "multiply", "divide", "remainder", "maximum", "minimum"]),
                          st.integers(1, 9)), min_size=1, max_size=4))
def test_arithmetic(steps):
    lines, last = "", "i"
    for number, (name, value) in enumerate(steps):
        lines += f"  k{number} = s32[] constant({value})\n  v{number} = s32[] {name}({last}, k{number})\n"
        last = f"v{number}"
    _compare(_module(lines + f"  ROOT t = (s32[]) tuple({last})"))


@pytest.mark.parametrize(("shape", "table", "size"), [("4", "{8,4,2,1}", "1"), ("3", "{5,6,7}", "1")])
def test_tables(shape, table, size):
    _compare(_module(f"""  table = s32[{shape}] constant({table})
  row = s32[{size}] dynamic-slice(table, u), dynamic_slice_sizes={{{size}}}
  one = s32[] reshape(row)
  ROOT t = (s32[]) tuple(one)"""))


def test_what_depends_on_a_parameter_is_unknown():
    module = _module("  p = s32[] parameter(0)\n  s = s32[] add(i, p)\n  ROOT t = (s32[]) tuple(s)")
    graph = HloGraph(module)
    assert values_by_partition(graph, graph.operand(graph.root, 0), 4) is None
