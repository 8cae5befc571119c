"""The command line of a benchmark, and its JSON file: results, the run that they come from, tables made of them."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu._util.threads import usable_cores
from harness._tables import Figure, Table, figures_table, show

_VERSIONS = ("numpy", "scipy", "jax", "ray", "highspy", "scikit-learn")


@final
class Results(dict[str, Any]):
    """Everything that a benchmark found, in its file as soon as it is known.

    Args:
        file: where it is kept; None: nowhere.
        resumed_by: the settings that results depend on: a file that was made with the same is gone on from, one that
            was made with others is left alone. None: a file that is there is replaced.
        begun: the results where there is no file yet.

    Raises:
        SystemExit: the file was made with other settings.
    """

    def __init__(self, file: Path | None, resumed_by: Mapping[str, Any] | None = None, **begun: Any) -> None:
        super().__init__({"version": 1, **begun})
        self.file = file
        if resumed_by is not None:
            self["settings"] = json.loads(json.dumps(resumed_by, default=str))
        if resumed_by is not None and file is not None and file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            if found.get("settings") != self["settings"]:
                said = f"{file} was measured with {found.get('settings')}, now {self['settings']}"
                raise SystemExit(f"{said}: name another file")
            self.update(found)

    def write(self) -> None:
        """Writes the file, whole or not at all, with the run: its command, its date and its machine."""
        if self.file is not None:
            self["run"] = _run()
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps(self, indent=1, default=str) + "\n")

    def known(self, kind: str, name: str, computed: Callable[..., Mapping[str, Any]], *args: Any) -> dict[str, Any]:
        """A row that is known by its kind and name; computed of arguments, with its `cpu_s`, where it isn't."""
        rows: dict[str, dict[str, Any]] = self.setdefault(kind, {})
        if name not in rows:
            started = time.process_time()
            row = computed(*args)
            rows[name] = {**row, "cpu_s": time.process_time() - started}
            self.write()
        return rows[name]

    def shown(self, *shown: Table | str, figures: Sequence[Figure] = ()) -> int:
        """Prints tables, lines and figures, and writes the file with them; 1 if a figure is missed, else 0."""
        every = [*shown, *([figures_table(figures)] if figures else [])]
        self["tables"] = [dataclasses.asdict(one) if isinstance(one, Table) else one for one in every]
        if figures:
            self["figures"] = [dataclasses.asdict(figure) for figure in figures]
        self.write()
        show(*every)
        return 0 if all(figure.held for figure in figures) else 1


def _run() -> dict[str, Any]:
    # A path from the root of this machine tells nobody else anything.
    said = [Path(argument).name if os.path.isabs(argument) else argument for argument in sys.argv]
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(said[0]).name}", *said[1:]]),
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cores": usable_cores(),
            "platform": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            **{name: version for name in _VERSIONS if (version := installed_version(name)) is not None},
        },
    }


Main = Callable[..., int]


def options(doc: str | None, *, json: str | None = None) -> argparse.ArgumentParser:
    """A parser that knows `--json`, with the docstring of a benchmark, and the file that results are written to where
    nobody names one; None: none is written then.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    said = "write the results here" + (f" (default: {json})" if json else "")
    default = None if json is None else Path(json)
    parser.add_argument("--json", type=Path, metavar="FILE", default=default, help=said)
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number and not below the least one.

    >>> at_least(1)("3")
    3
    """

    def parsed(text: str) -> int:
        if not text.strip().lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"it is {text!r}; give a whole number of {least} or more")
        return int(text)

    return parsed


def wrong_input_told(main: Main) -> Main:
    """Has a benchmark end with 2 where it raises ValueError or FileNotFoundError, and say on stderr what is wrong."""

    @functools.wraps(main)
    def told(arguments: Sequence[str] | None = None) -> int:
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        try:
            return main(arguments)
        except (ValueError, FileNotFoundError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2

    return told
