"""Files that may be JSON or YAML; PyYAML is imported where one is YAML, since plain commands needn't wait for it."""

from __future__ import annotations

import pathlib
from typing import Any, TypeVar

from alpa_dejavu._util.json_file import CheckedFile, peek, read_checked

_Data = TypeVar("_Data")


def is_yaml(path: pathlib.Path) -> bool:
    """Returns whether a file is read as YAML, by the end of its name.

    >>> is_yaml(pathlib.Path("mine.yml")), is_yaml(pathlib.Path("mine.json"))
    (True, False)
    """
    return path.suffix.lower() in (".yaml", ".yml")


def read_checked_file(path: pathlib.Path, kind: type[_Data], remedy: str) -> CheckedFile[_Data]:
    """Reads a file that may be YAML or JSON, by the end of its name, as `read_checked_yaml` or `read_checked` does."""
    if not is_yaml(path):
        return read_checked(path, kind, remedy)
    from alpa_dejavu._util.yaml_file import read_checked_yaml

    return read_checked_yaml(path, kind, remedy)


def peek_file(path: pathlib.Path) -> Any:
    """Returns the data of a YAML or JSON file, checked against no format; None where it can't be read."""
    if not is_yaml(path):
        return peek(path)
    from alpa_dejavu._util.yaml_file import peek_yaml

    return peek_yaml(path)
