"""What MLIR would forget on the way to the partitioner is kept, and nothing of the disguise is left after it."""

from alpa_stock_jax.hlo_shield import shield_constants, shield_copies, shield_operators, unshield_constants
from hlo_tools import from_text, opcodes, to_text

MODULE = """HloModule m
ENTRY e { a = f32[4] parameter(0)
  one = f32[] constant(1)
  wide = f32[4] broadcast(one), dimensions={}
  rows = f32[4] copy(a), sharding={devices=[2]0,1}
  whole = f32[4] copy(a), sharding={replicated}
  s = f32[4] add(rows, wide)
  ROOT t = (f32[4], f32[4]) tuple(s, whole) }"""


def test_constants_go_behind_a_barrier_and_come_back():
    module = from_text(MODULE)
    shielded = shield_constants(module)
    assert opcodes(shielded).count("opt-barrier") == 1
    back = unshield_constants(shielded)
    assert sorted(opcodes(back)) == sorted(opcodes(module))
    assert "broadcast(f32[] %one)" in to_text(back)


def test_copies_into_pieces_ask_for_their_sharding():
    shielded = shield_copies(from_text(MODULE))
    assert opcodes(shielded).count("copy") == 1
    (call,) = [line for line in to_text(shielded).splitlines() if "custom-call(" in line]
    assert 'custom_call_target="Sharding"' in call
    assert "sharding={devices=[2]0,1}" in call


def test_operators_whose_sharding_mlir_forgets_ask_for_it():
    module = from_text("""HloModule m
ENTRY e { a = f32[8] parameter(0), sharding={devices=[2]0,1}
  low = f32[4] slice(a), slice={[0:4]}, sharding={replicated}
  high = f32[4] slice(a), slice={[4:8]}
  s = f32[4] add(low, high), sharding={devices=[2]0,1}
  ROOT both = f32[8] concatenate(s, low), dimensions={0}, sharding={devices=[2]0,1} }""")
    shielded = shield_operators(module)
    calls = [line for line in to_text(shielded).splitlines() if "custom-call(" in line]
    assert [line.partition("custom-call(")[2].partition(")")[0].split("%")[-1] for line in calls] == ["low", "both"]
    assert calls[1].strip().startswith("ROOT")
    assert sorted(opcodes(shielded)) == sorted([*opcodes(module), "custom-call", "custom-call"])
