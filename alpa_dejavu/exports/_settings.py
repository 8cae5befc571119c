"""The settings of other runtimes' configurations, each with what a reader does with it, as `settings.csv` has them.

Without effect are those that change neither the model nor its division, its memory or its price: data, tokenizers,
learning rates, checkpoints, logging, and choices of kernels beside the ones that prices rest on.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, final

from alpa_dejavu._util.near_names import near

_TABLE = pathlib.Path(__file__).with_name("settings.csv")


@final
@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting of a runtime's configuration.

    Attributes:
        use: "applied"; "off", which is refused but for some values; "refused"; or "aside", which is without effect.
        allowed: the values that leave all as it is, of one that is off.
        words: how many values an argument of a command line has: none, one, or (2) any number.
        why: why it is refused, as the end of a sentence.
    """

    use: str
    allowed: tuple[Any, ...] = ()
    words: int = 0
    why: str = ""


@functools.cache
def settings_of(runtime: str) -> Mapping[str, Mapping[str, Setting]]:
    """Returns a runtime's settings by section and name; the name "*" is of all others of a section."""
    sections: dict[str, dict[str, Setting]] = {}
    with _TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["runtime"] == runtime:
                use, value = row["use"], row["value"]
                setting = Setting(
                    use,
                    allowed=tuple(json.loads(value)) if use == "off" else (),
                    words=int(value) if use in ("applied", "aside") and value else 0,
                    why=value if use == "refused" else "",
                )
                sections.setdefault(row["section"], {})[row["name"]] = setting
    return sections


def unknown_setting(shown: str, name: str, names: Iterable[str]) -> str:
    """Returns what is wrong with a setting that a runtime isn't known to have."""
    return f"{shown} isn't known, so it may change what is planned{near(name, names)}; leave it out if it doesn't"
