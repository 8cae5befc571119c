"""The sizes of a model as a text, `kind:size=number,...`, which stands for the model wherever its name does."""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alpa_dejavu._util.near_names import near
from alpa_dejavu.problem import checks
from alpa_dejavu.problem.limits import MOST_LAYERS, MOST_WIDTH, at_most

if TYPE_CHECKING:
    from typing_extensions import Self

_FIRST = "hidden num_blocks num_heads kv_heads head_size feed_forward vocabulary sequence".split()
_MOST_BASE = 10**12
_SHORT = {"num_blocks": "blocks", "num_heads": "heads", "num_experts": "experts"}


class TextSizes(abc.ABC):
    """The sizes of a model of blocks with attention, a dataclass that a text may stand for."""

    @abc.abstractmethod
    def _derived(self) -> dict[str, Any]:
        """The sizes that follow from others where they are 0, or empty."""

    @property
    def text(self) -> str:
        """Returns the sizes as a text, which stands for the model wherever a model's name does."""
        defaults = {name: field.default for name, field in _fields(type(self)).items()} | self._derived()
        values = ((alias, getattr(self, name), defaults[name]) for alias, name in _aliases(type(self)).items())
        shown = {alias: value for alias, value, default in values if value != default}
        words = {True: "yes", False: "no"}
        texts = (f"{alias}={words[value] if isinstance(value, bool) else value}" for alias, value in shown.items())
        return self.prefix() + ",".join(texts)

    @classmethod
    def of_text(cls, text: str) -> Self | None:
        """Returns the sizes that a text stands for; None if it isn't such a text.

        Raises:
            ValueError: it names a size that there isn't, or one twice, or isn't followed by a number.

        >>> from alpa_dejavu.layers.models import Transformer
        >>> Transformer.of_text("transformer:hidden=8,blocks=2,heads=2,vocabulary=16,sequence=4").feed_forward
        32
        """
        if not text.startswith(cls.prefix()) or "=" not in text:  # else it is a function of the user's own module
            return None
        aliases, sizes = _aliases(cls), dict[str, Any]()
        for part in text.removeprefix(cls.prefix()).split(","):
            alias, _, value = part.partition("=")
            if alias not in aliases or aliases[alias] in sizes:
                listed = ", ".join(aliases)
                raise ValueError(
                    f"model has {part!r}, but must have one of {listed}, each once{near(alias, aliases)}; mend its text"
                )
            sizes[aliases[alias]] = _read(alias, value, _fields(cls)[aliases[alias]].type)
        needed = [name for name, field in _fields(cls).items() if field.default is dataclasses.MISSING]
        missing = [_SHORT.get(name, name) for name in needed if name not in sizes]
        if missing:
            raise ValueError(f"model is {text!r}, but must say {', '.join(missing)}, too; add them as {missing[0]}=N")
        return cls(**sizes)

    @classmethod
    def prefix(cls) -> str:
        """Returns how texts and errors begin that are of these sizes."""
        return f"{cls.__name__.lower()}:"

    def _fill_in(self) -> None:
        """Checks each size by itself, and gives those that follow from others their values."""
        owner = self.prefix()[:-1]
        at_most(f"{owner}: num_blocks", getattr(self, "num_blocks", 1), MOST_LAYERS - 2, "plan fewer: each is a layer")
        for name, field in _fields(type(self)).items():
            if field.type == "int":
                most = _MOST_BASE if name == "rotary_base" else MOST_WIDTH
                at_most(f"{owner}: {name}", getattr(self, name), most, "mend the sizes")
            if field.type == "int" and field.default != 0:
                checks.count(owner, name, getattr(self, name))
        if not getattr(self, "head_size", 0):
            self._divides("num_heads", "hidden")
        for name, value in self._derived().items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
            if isinstance(value, int):
                checks.count(owner, name, getattr(self, name))

    def _divides(self, name: str, other: str) -> None:
        value, of = getattr(self, name), getattr(self, other)
        if of % value:
            raise ValueError(f"{self.prefix()} {name} is {value}, but must divide {other}, {of}; mend the sizes")


@functools.cache
def _fields(kind: Any) -> Mapping[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


@functools.cache
def _aliases(kind: Any) -> Mapping[str, str]:
    """The fields of sizes by the names that they have in a text, in the order in which they stand there."""
    return {_SHORT.get(name, name): name for name in dict.fromkeys([*_FIRST, *_fields(kind)]) if name in _fields(kind)}


def _read(alias: str, value: str, kind: object) -> int | float | bool | str:
    if kind == "str":
        return value
    if kind == "bool" and value in ("yes", "no"):
        return value == "yes"
    if kind == "int" and value.isascii() and value.isdigit():
        return int(value)
    if kind == "float" and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        return float(value)
    wanted = {"bool": "yes or no", "float": "a number"}.get(str(kind), "a whole number")
    raise ValueError(f"model has {alias}={value}, but must have {wanted} there; mend its text")
