"""The settings of other runtimes' configurations: what a reader does with each, as `settings.csv` has it, and their
values.

Without effect are those that change neither the model nor its division, its memory or its price.
"""

from __future__ import annotations

import csv
import dataclasses
import fnmatch
import functools
import json
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from alpa_dejavu._util.json_file import CheckedFile
from alpa_dejavu._util.near_names import near
from alpa_dejavu.layers.models import Transformer

_TABLE = pathlib.Path(__file__).with_name("settings.csv")
_LONGEST = 100
_TRAINED: Final = {
    "sequence", "positions", "precision", "gather", "optimizer", "imbalance", "train_last", "lora", "lora_targets",
    "frozen",
}  # fmt: skip
"""Fields of a transformer that say how it is trained: a file and a model that is given may differ in them."""
_MOST: Final = 10**9
"""Numbers of configurations are less."""


def short(value: Any) -> str:
    """Returns a value as an error shows it, cut where it is long.

    >>> short("a" * 1000)[-9:]
    'aaaaa ...'
    """
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def cluster_of(num_devices: int) -> str:
    """Returns the end of a sentence on a file that runs on another number of devices than the cluster has."""
    return f"the {num_devices} devices of the cluster; give the cluster that it runs on, by --cluster and --hosts"


class Setting(NamedTuple):
    """A setting of a runtime's configuration."""

    # "applied"; "off", which is refused but for some values; "refused"; "aside", which is without effect; or "default",
    # which is what a class has where nothing is said.
    use: str
    allowed: tuple[Any, ...] = ()  # values that leave all as it is, of one that is off; none: those that switch it off
    words: int = 0  # how many values an argument of a command line has: none, one, or (2) any number
    why: str = ""  # why it is refused, as the end of a sentence
    default: Any = None  # its value where nothing is said

    def leaves(self, value: Any) -> bool:
        """Returns whether a value of one that is off leaves all as it is; a number also as the text of an argument."""
        if self.allowed:
            texts = (value, value if isinstance(value, bool) else str(value))
            same = (type(own) is type(other) and own == other for own in texts for other in self.allowed)
            return value is None or any(same)
        return _is_off(value)

    @property
    def remedy(self) -> str:
        """Returns what to do about a value of one that is off."""
        return f"make it {self.allowed[0]!r}, or leave it out" if self.allowed else "leave it out, or switch it off"


def _is_off(value: Any) -> bool:
    """Returns whether a feature's value switches it off: null, false, an empty text, or groups that aren't enabled.

    >>> _is_off({"weights": {"shared_parameters": {"enabled": False}, "different_groups": {"a": {"bits": 8}}}})
    True
    """
    if not isinstance(value, dict):
        return value is None or value is False or value == ""
    key = next((key for key in ("enabled", "deepcompile", "shared_parameters") if key in value), None)
    return all(map(_is_off, value.values() if key is None else (value[key],)))


@functools.cache
def settings_of(runtime: str) -> Mapping[str, Mapping[str, Setting]]:
    """Returns a runtime's settings by section and name; one with "*" in it is of all others that it matches."""
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
                    default=json.loads(value) if use == "default" else None,
                )
                sections.setdefault(row["section"], {}).update(dict.fromkeys(row["names"].split(), setting))
    return sections


def setting_of(settings: Mapping[str, Setting], name: str) -> Setting | None:
    """Returns the setting of a name, or of a pattern that it matches; None where it isn't known."""
    if name in settings:
        return settings[name]
    return next((own for key, own in settings.items() if "*" in key and fnmatch.fnmatchcase(name, key)), None)


@final
@dataclasses.dataclass(frozen=True)
class Configuration:
    """A runtime's configuration."""

    values: Mapping[str, Any]  # the values of settings by their names; those within sections have dots between
    wrong: Callable[[str, str], ValueError]  # makes the error that says what is wrong with a setting, with its line
    sign: str = ""  # what errors show in front of names
    mend: str = ""  # the remedy that errors end in, where `wrong` adds none
    ignored: tuple[str, ...] = ()  # sentences on what was left aside, with its line

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a setting's value; the default stands for null, too."""
        value = self.values.get(name)
        return default if value is None else value

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Returns a whole number, at least the least, or the default; ValueError for another, as the other methods."""
        value = self.get(name, default)
        if not _is_whole(value) or not (value == default or least <= value < _MOST):
            raise self.must_be(name, f"a whole number of at least {least}", default)
        return int(value)

    def real(self, name: str, default: float | None = None) -> float:
        """Returns a finite number, or the default."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
            raise self.must_be(name, "a number", default)
        return float(value)

    def tokens(self, name: str, sequence: int | None) -> int:
        """Returns the tokens of a sample: as many as the model may have by a setting, where no fewer are asked for."""
        most = self.number(name)
        if sequence is not None and sequence > most:
            raise self.must_be(
                name, f"at least the {sequence} tokens asked for; give --sequence {most} or fewer, or raise it in the "
                "file",
            )  # fmt: skip
        return sequence or most

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns whether something is so."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.must_be(name, "true or false")
        return value

    def one_of(self, name: str, choices: Collection[str], default: str = "") -> str:
        """Returns one of some texts."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.must_be(
                name, f"one of {', '.join(choices)}" if len(choices) > 2 else " or ".join(choices), default
            )
        return value

    def must_be(self, name: str, what: str, default: Any = None) -> ValueError:
        """Returns the error of a setting that must be something else."""
        value = self.get(name, default)
        return self.wrong(name, f"{self.sign}{name} is {short(value)}, but must be {what}{self.mend}")

    def replicas(self, name: str, num_devices: int, stages: int, along: int = 1, context: int = 1) -> int:
        """Returns how many replicas of so many stages of so many tensor- and context-parallel devices a cluster has."""
        across, rest = divmod(num_devices, max(stages * along * context, 1))
        if rest or not across:
            devices = f" of {along} tensor-parallel devices" if along != 1 else ""
            devices += f" times {context} context-parallel ones" if context != 1 else ""
            raise self.wrong(name, f"{stages} stages{devices} must divide {cluster_of(num_devices)}")
        return across


def differing(sizes: Transformer, model: Transformer) -> dict[str, Any]:
    """Returns the sizes in which a model that is given differs from a file's, as the given one has them."""
    fields = (field.name for field in dataclasses.fields(model) if field.name not in _TRAINED)
    return {name: getattr(model, name) for name in fields if getattr(model, name) != getattr(sizes, name)}


def check_given(
    config: Configuration, usual: Mapping[str, Any], sizes: Callable[[Configuration], Transformer]
) -> Transformer:
    """Returns the sizes that a file's settings say beside a model that is given, by `usual` for what says the same.
    Raises ValueError, with its line, for a setting that says another size.
    """
    own, given = sizes(config), sizes(dataclasses.replace(config, values=usual))
    other = differing(own, given)
    for name in config.values if other else ():
        values = {key: value for key, value in config.values.items() if key != name}
        values |= {name: usual[name]} if name in usual else {}
        try:
            fewer = differing(sizes(dataclasses.replace(config, values=values)), given)
        except ValueError:  # It says nothing without that setting.
            continue
        if len(fewer) < len(other):
            mended = {field: value for field, value in other.items() if field not in fewer}
            raise config.wrong(name, given_otherwise(f"{config.sign}{name} is {short(config.values[name])}", mended))
    if other:
        raise config.wrong("", given_otherwise("the model is another one", other))
    return own


def given_otherwise(what: str, other: Mapping[str, Any]) -> str:
    """Returns what is wrong with a setting beside a model that is given, which has other sizes."""
    sizes = ", ".join(f"{name}={value}" for name, value in other.items())
    return f"{what}, but --model has {sizes}; give the model of the run, or leave it out"


def checked_settings(
    runtime: str,
    data: Mapping[str, Any],
    wrong: Callable[[tuple[str, ...], str], ValueError],
    line_of: Callable[[tuple[str, ...]], int | None],
    mend: str = "",
) -> Configuration:
    """Returns the configuration of a file in sections, whose settings are all known and planned. `wrong` makes the
    error of a place, `line_of` tells its line, and `mend` is the remedy that errors end in, where `wrong` adds none.
    Raises ValueError if a setting isn't known, or is of what isn't planned; says in which line.
    """
    sections, values, aside = settings_of(runtime), dict[str, Any](), dict[int, list[str]]()
    for place, value in _places(data, sections):
        settings, key, shown = sections[place[-2] if place[1:] else ""], place[-1], ".".join(place)
        setting = setting_of(settings, key)
        if setting is None:
            raise wrong(place, unknown_setting(shown, key, settings))
        if len(place) == 1 and key in sections and value is not None and not isinstance(value, dict):
            raise wrong(place, f"{key} is {short(value)}, but must be a section of settings{mend}")
        if setting.use == "off" and not setting.leaves(value):
            raise wrong(place, f"{shown} is {short(value)}, which isn't planned; {setting.remedy}")
        values[shown] = value
        if setting.use == "aside":
            aside.setdefault(line_of(place) or 0, []).append(shown)
    ignored = ((f"line {line}: " if line else "") + ", ".join(names) for line, names in aside.items())
    return Configuration(
        values, lambda name, why: wrong(tuple(filter(None, name.split("."))), why), "", mend, tuple(ignored)
    )


def json_settings(runtime: str, file: CheckedFile[dict[str, Any]]) -> Configuration:
    """Returns the configuration of a JSON file, as `checked_settings` does."""
    return checked_settings(runtime, file.data, file.problem, lambda place: file.line_of(file.text, place))


def _places(
    data: Mapping[str, Any], sections: Collection[str], outer: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        yield (*outer, key), value
        if key in sections and isinstance(value, dict) and len(outer) < 3:
            yield from _places(value, sections, (*outer, key))


def unknown_setting(shown: str, name: str, names: Iterable[str]) -> str:
    """Returns what is wrong with a setting that a runtime isn't known to have."""
    return f"{shown} isn't known, so it may change what is planned{near(name, names)}; leave it out if it doesn't"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole_numbers(values: Any) -> bool:
    """Returns whether something is a list of whole numbers."""
    return isinstance(values, list) and all(map(_is_whole, values))
