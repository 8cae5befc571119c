"""The hashable dictionary that jax.experimental.maps had: Alpa freezes static arguments and pytree nodes with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["FrozenDict"]


class FrozenDict(Mapping[Any, Any]):
    """A read-only mapping that can be hashed where its values can; a leaf to jax's pytrees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._contents = dict(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._contents[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def __hash__(self) -> int:
        return hash(frozenset(self._contents.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenDict) and self._contents == other._contents

    def __repr__(self) -> str:
        return f"FrozenDict({self._contents!r})"
