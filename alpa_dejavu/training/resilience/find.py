"""Finds the parts of a model in its parameters, by the conventions of flax and plain JAX, or along given axes."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu._util.near_names import near
from alpa_dejavu.training._scope import paths_of
from alpa_dejavu.training.resilience.parts import Axis, Owner, Parts

if TYPE_CHECKING:
    from jaxtyping import Array, PyTree

__all__ = ["KINDS", "find_parts", "parts_of_axes"]

Patterns: TypeAlias = str | Sequence[str]
_PROJECTIONS = ("query", "key", "value")


def find_parts(params: PyTree, kind: str = "neurons", *, only: Patterns | None = None, but: Patterns = ()) -> Parts:
    """Returns the units of a kind in a model's parameters, by the conventions of flax and plain JAX.

    - "neurons" are indices of the last axis of arrays of two or more dimensions, with the biases beside them; the
      neurons of a convolution are its filters.
    - "filters" are those of arrays of three or more dimensions alone.
    - "heads" are those of flax's attention: kernels (width, heads, width of a head) named query, key, value, and out.
    - "layers" are all arrays of a module; where one is lost, a residual block passes its input on.
    - "weights" are single numbers.

    Args:
        only: patterns of paths, as "blocks/*/up", whose arrays are taken, and what lies below them; for layers each
            path that matches is a layer. None: all.
        but: patterns of paths that are left out, such as those of the last layer, whose neurons are the classes.

    A pattern that no path begins with stands for all places further in: "Dense_1" for "params/Dense_1".

    Raises:
        ValueError: there is no such kind, no such part in the parameters, or a pattern is nowhere in them.

    >>> params = {"hidden": {"kernel": np.zeros((4, 3)), "bias": np.zeros(3)}, "out": np.zeros((3, 2))}
    >>> found = find_parts(params, but="out")
    >>> found.groups, found.sizes, found.name(2)
    (('hidden',), (3,), 'hidden[2]')
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, but must be one of {', '.join(KINDS)}{near(kind, KINDS)}; name one")
    paths, shapes = _arrays(params)
    leaves = jax.tree.leaves(params)
    only_below = None if only is None else _placed("only", only, paths)
    left_out = _placed("but", but, paths)

    def is_wanted(path: str, leaf: Array) -> bool:
        if only_below is not None and _prefix(path, only_below) is None:
            return False
        return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating)) and _prefix(path, left_out) is None

    wanted = list(map(is_wanted, paths, leaves))
    parts = KINDS[kind](_ModelArrays(paths, shapes, wanted, only_below))
    if not parts.count:
        why = "" if only is None and not but else f" by only={only!r}, but={but!r}"
        raise ValueError(f"kind is {kind!r}, but must be of parts that are there: the model has no {kind}{why}; its "
                         f"arrays are {', '.join(map('{} {}'.format, paths, shapes))}")  # fmt: skip
    return parts


def parts_of_axes(params: PyTree, kind: str, groups: Mapping[str, Sequence[Axis]]) -> Parts:
    """Returns units that lie along given axes: for each group, all arrays that its units have numbers in.

    Where a group has those who read it, too, a removed unit is the same as one that never was, whatever the activation.

    Args:
        groups: by name, the axes of a group; all must have as many units.

    Raises:
        ValueError: there is no such array or axis, or an axis doesn't divide into the units.

    >>> heads = {"block": [Axis("qkv", width=2, units=4), Axis("mixed", axis=0, width=2)]}
    >>> parts_of_axes({"qkv": np.zeros((8, 24)), "mixed": np.zeros((8, 8))}, "heads", heads).sizes
    (4,)
    """
    return _along(kind, *_arrays(params), groups)


def _arrays(params: PyTree) -> tuple[list[str], list[tuple[int, ...]]]:
    return paths_of(params), [tuple(np.shape(leaf)) for leaf in jax.tree.leaves(params)]


def _placed(name: str, patterns: Patterns, paths: Sequence[str]) -> tuple[str, ...]:
    """Returns patterns from the beginning of paths; one that no path begins with stands for all places further in.

    Raises:
        ValueError: a pattern is nowhere.
    """
    placed_patterns: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) and patterns else patterns:
        deeper = ["*/" * depth + pattern for depth in range(max((path.count("/") for path in paths), default=0) + 1)]
        matching = [deep for deep in deeper if any(_prefix(path, (deep,)) is not None for path in paths)]
        if not matching:
            raise ValueError(f"{name} has {pattern!r}, but must be of paths that are there{near(pattern, paths)}; the "
                             f"model's arrays are {', '.join(paths)}")  # fmt: skip
        placed_patterns += matching[:1] if matching[0] == pattern else matching
    return tuple(placed_patterns)


def _prefix(path: str, patterns: Sequence[str]) -> str | None:
    """Returns the beginning of a path that matches a pattern, name by name; None: nothing does."""
    names = path.split("/")
    for pattern in patterns:
        wanted = pattern.split("/")
        if len(wanted) <= len(names) and all(map(fnmatch.fnmatchcase, names, wanted)):
            return "/".join(names[: len(wanted)])
    return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


_Shapes: TypeAlias = Sequence[tuple[int, ...]]


class _ModelArrays(NamedTuple):
    """The arrays of a model: paths, shapes, which are wanted, and the patterns that name layers."""

    paths: Sequence[str]
    shapes: _Shapes
    wanted: Sequence[bool]
    only: Sequence[str] | None

    @property
    def rows(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        return zip(self.paths, self.shapes, self.wanted, strict=True)


def _neurons(least: int, kind: str, arrays: _ModelArrays) -> Parts:
    matrices = [_parent(path) for path, shape, _ in arrays.rows if len(shape) >= 2]
    groups: dict[str, list[Axis]] = {}
    for path, shape, is_wanted in arrays.rows:
        if not is_wanted or len(shape) < least:
            continue
        module, single = _parent(path), matrices.count(_parent(path)) == 1
        beside = [other for other, size, _ in arrays.rows
                  if module and single and _parent(other) == module and size == shape[-1:]]  # fmt: skip
        groups[module if module and single else path] = [Axis(path), *map(Axis, beside)]
    return _along(kind, arrays.paths, arrays.shapes, groups)


def _heads(arrays: _ModelArrays) -> Parts:
    groups: dict[str, list[Axis]] = {}
    for path, shape, is_wanted in arrays.rows:
        module, _, name = path.rpartition("/")
        block, _, role = module.rpartition("/")
        if is_wanted and role in _PROJECTIONS and name in ("kernel", "bias") and len(shape) == 2 + (name == "kernel"):
            groups.setdefault(block, []).append(Axis(path, -2))
        elif is_wanted and role == "out" and name == "kernel" and len(shape) == 3:
            groups.setdefault(block, []).append(Axis(path, 0))
    groups = {name: axes for name, axes in groups.items() if len(axes) > 1}
    return _along("heads", arrays.paths, arrays.shapes, groups)


def _layers(arrays: _ModelArrays) -> Parts:
    names = [(_parent(path) or path) if arrays.only is None else (_prefix(path, arrays.only) or "")
             for path in arrays.paths]  # fmt: skip
    groups = tuple(dict.fromkeys(name for name, is_wanted in zip(names, arrays.wanted, strict=True) if is_wanted))
    owners = tuple(
        (Owner(np.full((1,) * len(shape), groups.index(name), np.int32)),) if is_wanted else ()
        for name, (_, shape, is_wanted) in zip(names, arrays.rows, strict=True)
    )
    return Parts("layers", groups, (1,) * len(groups), owners, tuple(arrays.shapes))


def _weights(arrays: _ModelArrays) -> Parts:
    owners: list[tuple[Owner, ...]] = []
    groups: dict[str, int] = {}
    for path, shape, is_wanted in arrays.rows:
        size = math.prod(shape) * is_wanted
        numbers = sum(groups.values()) + np.arange(size, dtype=np.int32)
        owners.append((Owner(numbers.reshape(shape)),) if size else ())
        if size:
            groups[path] = size
    return Parts("weights", tuple(groups), tuple(groups.values()), tuple(owners), tuple(arrays.shapes))


def _along(kind: str, paths: Sequence[str], shapes: _Shapes, groups: Mapping[str, Sequence[Axis]]) -> Parts:
    owners: list[list[Owner]] = [[] for _ in paths]
    sizes: list[int] = []
    for number, (name, axes) in enumerate(groups.items()):
        counts = [_units(axis_of_units, paths, shapes) for axis_of_units in axes]
        if len(set(counts)) != 1:
            raise ValueError(f"group {name} is of {counts} units in its arrays, but must be of as many in each; give "
                             "width and units of each axis")  # fmt: skip
        for axis_of_units in axes:
            leaf = paths.index(axis_of_units.leaf)
            axis = axis_of_units.axis % len(shapes[leaf])
            shape = [1] * len(shapes[leaf])
            shape[axis] = shapes[leaf][axis]
            units = (
                (np.arange(shape[axis]) // axis_of_units.width % counts[0] + sum(sizes)).astype(np.int32).reshape(shape)
            )
            owners[leaf].append(Owner(units, axis, axis_of_units.width, number))
        sizes.append(counts[0])
    return Parts(kind, tuple(groups), tuple(sizes), tuple(map(tuple, owners)), tuple(shapes))


def _units(axis: Axis, paths: Sequence[str], shapes: _Shapes) -> int:
    if axis.leaf not in paths:
        raise ValueError(f"leaf is {axis.leaf!r}, but must be one of {', '.join(paths)}{near(axis.leaf, paths)}; name "
                         "an array of the parameters")  # fmt: skip
    shape = shapes[paths.index(axis.leaf)]
    if not -len(shape) <= axis.axis < len(shape):
        raise ValueError(
            f"axis is {axis.axis}, but must be one of {axis.leaf}, whose shape is {shape}; name another one"
        )
    size = shape[axis.axis]
    units = size // axis.width if axis.units is None else axis.units
    if units < 1 or axis.width < 1 or size % (axis.width * units):
        raise ValueError(f"width is {axis.width} for {units} units, but must divide the {size} indices of axis "
                         f"{axis.axis} of {axis.leaf}; give other ones")  # fmt: skip
    return units


KINDS: Mapping[str, Callable[[_ModelArrays], Parts]] = {
    "neurons": functools.partial(_neurons, 2, "neurons"),
    "filters": functools.partial(_neurons, 3, "filters"),
    "heads": _heads,
    "layers": _layers,
    "weights": _weights,
}
"""For each kind of parts how it is found in parameters."""
