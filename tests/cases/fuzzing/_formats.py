"""Broken files of every format, each read by the commands that read it."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from hypothesis import strategies as st

from fuzzing._binary import broken_arrays, broken_gzip, broken_history, broken_pickle
from fuzzing._breaks import ENCODINGS, Contents, broken_bytes, broken_lines, broken_text, broken_words
from fuzzing._example import Example, Placed
from fuzzing._right import MACHINE, MODEL, PLANNED, Files

Command: TypeAlias = tuple[str, ...]

_ON_CLUSTER: Command = ("plan", *PLANNED, "--cluster", "cluster.json")
_ON_MACHINE: Command = ("plan", *PLANNED, "--cluster", MACHINE)
_LOST: Command = ("replan", "plan.json", "--without", f"{MACHINE}-1", "--json", "new.json")
_PLAN_READERS: tuple[Command, ...] = (
    ("estimate", "plan.json"),
    ("estimate", "plan.json", "--model", MODEL, "--json", "new.json"),
    ("estimate", "plan.json", "--model", MODEL, "--cluster", "cluster.json", "--html", "new.html"),
    ("explain", "plan.json"),
    ("diff", "plan.json", "other.json", "--model", MODEL, "--cluster", "cluster.json"),
    ("diff", "other.json", "plan.json"),
    _LOST,
    ("replan", "plan.json", "--cluster", MACHINE, "--python", "new.py"),
)


@final
@dataclasses.dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: in the table.
        file: that is broken, a pattern of its path.
        broken: the broken contents of such a file.
        commands: that read it.
        environment: variables that they are given.
        reader: whether the commands are those of `_read.py`.
        changed: what may be changed by reading it: paths, or what they begin with.
        accepts: the file whose figures must agree with one another if it is accepted; empty: none.
    """

    name: str
    file: str
    broken: Callable[[bytes], Contents]
    commands: tuple[Command, ...]
    environment: tuple[tuple[str, str], ...] = ()
    reader: bool = False
    changed: tuple[str, ...] = ()
    accepts: str = ""

    def examples(self, right: Files) -> st.SearchStrategy[Example]:
        """All files are there, and one that is broken; or none, or something else, is in its place."""
        return st.composite(_example)(self, right)


def _example(draw: st.DrawFn, form: Format, right: Files) -> Example:
    name = draw(st.sampled_from(fnmatch.filter(right, form.file)))
    rest = tuple(Placed(other, content) for other, content in right.items() if other != name)
    if draw(st.integers(0, 9)):
        placed: tuple[Placed, ...] = (Placed(name, draw(form.broken(right[name]))),)
    else:
        placed = draw(st.sampled_from(_instead(name, right[name])))
    command = draw(st.sampled_from(form.commands))
    outputs = (*outputs_of(command), *form.changed)
    return Example(
        form.name, command, (*rest, *placed), outputs, form.environment, form.reader, accepts=form.accepts
    )


def _instead(name: str, content: bytes) -> tuple[tuple[Placed, ...], ...]:
    """Nothing, a folder, links to the file, to nothing and to themselves, and files that never end, or not soon."""
    moved = Placed("moved", content)
    link = functools.partial(Placed, name, sort="link")
    ends = (b"nowhere", os.fsencode(pathlib.PurePath(name).name), b"/dev/null", b"/dev/full", b"/dev/zero")
    up = b"../" * name.count("/")
    links = [(link(up + b"moved"), moved), *((link(end),) for end in ends)]
    return ((), (Placed(name, sort="folder"),), (Placed(name, content, "sparse"),), *links)


def outputs_of(command: Sequence[str]) -> tuple[str, ...]:
    """What a command line names to be written."""
    options = ("--json", "--python", "--html", "--trace", "--order", "--output")
    return tuple(value for option, value in itertools.pairwise(command) if option in options and value)


def _lines(content: bytes) -> Contents:
    return broken_lines(content) | broken_bytes(content)


@st.composite
def _any_encoding(draw: st.DrawFn, content: bytes) -> bytes:
    """The right text in another encoding, or with what JSON's writer wouldn't write but its readers take."""
    text = json.dumps(json.loads(content), indent=draw(st.sampled_from((None, 8))))
    text = draw(st.sampled_from((text, text.replace("\n", "\r\n"), "\t" + text, text + "\n" * 1000)))
    return text.encode(draw(st.sampled_from(ENCODINGS)))


def _text(content: bytes) -> Contents:
    return st.one_of(*[broken_text(content)] * 8, _any_encoding(content))


FORMATS: tuple[Format, ...] = (
    Format("plan", "plan.json", _text, _PLAN_READERS),
    Format("kept", "plan.*kept*", broken_gzip, (("explain", "plan.json"), _LOST)),
    Format(
        "cluster", "cluster.json", _text,
        (_ON_CLUSTER, ("estimate", "plan.json", "--model", MODEL, "--cluster", "cluster.json"),
         ("replan", "plan.json", "--cluster", "cluster.json")),
    ),
    Format(
        "machine", "machine.json", _text,
        (("plan", *PLANNED, "--cluster", "machine.json", "--hosts", "2", "--json", "new.json"),
         ("replan", "plan.json", "--cluster", "machine.json", "--hosts", "2")),
    ),
    Format(
        "measured calibration", "measured.json", _text,
        (("calibration", "show", "measured.json"), (*_ON_MACHINE, "--calibration", "measured.json")),
    ),
    Format(
        "fitted calibration", "fitted.json", _text,
        (("calibration", "show", "fitted.json"), (*_ON_MACHINE, "--calibration", "fitted.json")),
    ),
    Format(
        "measurements", "*.measurements.jsonl", _lines,
        (("calibration", "show", "measured.json", "--html", "page.html"),),
    ),
    Format(
        "database", "database.json", _text,
        (("calibration", "show", "database.json"), ("calibration", "show", "database.json", "--html", "page.html")),
    ),
    Format(
        "pickle", "database.pkl", broken_pickle, (("calibration", "convert", "database.pkl", "--output", "new.json"),)
    ),
    Format(
        "history", "history.sqlite", lambda content: st.one_of(*[broken_history(content)] * 4, broken_bytes(content)),
        (("history", "--history", "history.sqlite"), ("history", "--history", "history.sqlite", "--json"),
         (*_ON_MACHINE, "--history", "history.sqlite")),
    ),
    Format("result", "result.json", _text, (("result", "result.json"),), reader=True),
    Format("state", "result.*.npz", broken_arrays, (("result", "result.json"),), reader=True),
    *(
        Format(f"reading {kind}", file, broken, (("file", kind, read),), reader=True, accepts=accepts)
        for kind, file, broken, read, accepts in (
            ("plan", "plan.json", _text, "plan.json", "plan.json"),
            ("kept", "plan.*kept*", broken_gzip, "plan.json", "plan.json.kept.json.gz"),
            ("runs", "runs.json", _text, "runs.json", "runs.json"),
            ("scenario", "scenario.yaml", broken_words, "scenario.yaml", ""),
            ("lengths", "lengths.csv", broken_words, "lengths.csv", ""),
            ("schedule", "schedule.csv", broken_words, "schedule.csv", ""),
            ("serving", "serving.json", _text, "serving.json", ""),
            ("jobs", "jobs.csv", broken_words, "jobs.csv", ""),
            ("hosts", "hosts.csv", broken_words, "hosts.csv", ""),
            ("config", "config.json", _text, "config.json", ""),
            ("megatron", "megatron.sh", broken_words, "megatron.sh", ""),
            ("torchtitan", "job.toml", broken_words, "job.toml", ""),
            ("written for torchtitan", "job.py", broken_words, "job.py", ""),
            ("galvatron", "galvatron.json", _text, "galvatron.json", ""),
            ("deepspeed", "deepspeed.json", _text, "deepspeed.json", ""),
            ("history", "history.sqlite", broken_history, "history.sqlite", ""),
            ("pickle", "database.pkl", broken_pickle, "database.pkl", ""),
            ("cluster", "cluster.json", _text, "cluster.json", ""),
        )
    ),
    Format(
        "model cache", "cache/*", broken_gzip, (_ON_MACHINE, ("estimate", "plan.json", "--model", MODEL)),
        (("ALPA_DEJAVU_CACHE", "cache"),), changed=("cache/",),
    ),
)  # fmt: skip
