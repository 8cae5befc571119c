"""The command lines of benchmarks."""

from __future__ import annotations

import argparse
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

Main = Callable[..., int]


def options(doc: str | None, *, json: str | None = None) -> argparse.ArgumentParser:
    """A parser that knows `--json`.

    Args:
        doc: the docstring of the benchmark, which is shown as it is.
        json: the file that results are written to where nobody names one; None: none is written then.
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
