"""Conformance suites: run any fault, ours or your own, through them.

Each function raises AssertionError with what is wrong, and returns nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.resilience.data_faults import DataFault
from alpa_dejavu.training.resilience.faults import UnitFault
from alpa_dejavu.training.resilience.find import parts_of_axes
from alpa_dejavu.training.resilience.parts import Axis, Parts, counted, drawn

__all__ = ["check_data_fault", "check_fault"]

_SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)


def check_fault(fault: UnitFault, *, changes_shapes: bool = False) -> None:
    """Checks that a fault keeps its contract: no unit hit changes nothing to the bit, hit units alone change, as many
    of them as were asked for; the same key gives the same again; it can be traced.

    Args:
        changes_shapes: whether it makes arrays wider; what they then hold isn't compared.

    >>> from alpa_dejavu.training.resilience.faults import Removed, Stuck
    >>> check_fault(Removed())
    >>> check_fault(Stuck(0.5))
    """
    params, units = _network()
    traced = jax.jit(lambda hit, key: fault.faulty(params, units, hit, key))
    for share in _SHARES:
        count, key = counted(units, share), jax.random.PRNGKey(3)
        assert abs(count - share * units.count) <= 1, f"a share of {share} is {count} of {units.count} units"
        hit = drawn(units, key, count)
        assert int(hit.sum()) == count, f"{int(hit.sum())} units are hit, not {count}"
        after = fault.faulty(params, units, hit, key)
        twice = traced(hit, key)
        for first, second in zip(*map(jax.tree.leaves, (after, twice)), strict=True):
            assert first.shape == second.shape, "traced, shapes are others"
            same = np.allclose(np.nan_to_num(first), np.nan_to_num(second), rtol=1e-6)
            assert same, "the same key gives something else"
        if changes_shapes:
            continue
        for leaf, new, mask in zip(*map(jax.tree.leaves, (params, after)), units.masks(hit), strict=True):
            assert leaf.shape == new.shape, f"a shape of {leaf.shape} became {new.shape}"
            assert leaf.dtype == new.dtype, f"a dtype of {leaf.dtype} became {new.dtype}"
            kept = ~np.broadcast_to(np.asarray(mask), leaf.shape)
            same = np.asarray(leaf).view(np.uint32) == np.asarray(new).view(np.uint32)
            assert same[kept].all(), f"at a share of {share} numbers change that no hit unit owns"


def check_data_fault(fault: DataFault) -> None:
    """Checks that a fault of data has a strength of no change, keeps inputs with targets, and obeys its key."""
    inputs, targets = jnp.arange(40.0).reshape(20, 2), jnp.arange(20) % 10
    for count in (0, 1, 7):
        key = jax.random.PRNGKey(count)
        after, twice = fault.faulty(inputs, targets, count, key), fault.faulty(inputs, targets, count, key)
        assert len(after[0]) == len(after[1]), f"{len(after[0])} inputs have {len(after[1])} targets"
        assert all(np.array_equal(array, other) for array, other in zip(after, twice, strict=True)), (
            "the same key differs"
        )
        rows = np.asarray(after[0])[:, 0].astype(int) // 2
        wrong = int(np.sum(np.asarray(after[1]) != np.asarray(targets)[rows]))
        more = len(rows) - len(targets)
        assert abs(more) + wrong == count, f"{count} samples were to be faulty, {abs(more) + wrong} are"
        assert count or (np.array_equal(after[0], inputs) and np.array_equal(after[1], targets)), "none changes data"


def _network() -> tuple[dict[str, jax.Array], Parts]:
    draw = np.random.default_rng(0)
    params = {"up": draw.standard_normal((5, 12)), "bias": draw.standard_normal(12),
              "down": draw.standard_normal((12, 3))}  # fmt: skip
    after = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in params.items()}
    axes = [Axis("up"), Axis("bias"), Axis("down", axis=0)]
    return after, parts_of_axes(after, "neurons", {"hidden": axes})
