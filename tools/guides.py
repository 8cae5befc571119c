"""Runs the blocks of code of README.md, docs/start.md, the guides and the concepts, and writes what they print.

    python tools/guides.py               # or `make guides`: writes into the pages what their commands print today
    python tools/guides.py --check       # writes nothing, and ends with 1 where a page shows something else
    python tools/guides.py --quick PAGE  # a page alone, without its blocks that are marked as slow

The blocks of a page run in their order, in a temporary folder with a copy of examples/. A block's language says what
it is: `bash` has commands, `console` has `$ ` before a command and then what it prints on a terminal of 80 columns,
`python` runs with the names of the page's blocks before it, and `text` is a drawing. A comment before a block may say:

    <!-- file NAME -->              it is the text of this file
    <!-- file NAME, beside BASE --> its keys, with those of another file, are those of this file, which is then read
    <!-- printed -->                it is what the block before it prints
    <!-- within 20 % -->            its numbers are so near on any processor, where one trains a model
    <!-- slow -->                   it takes over 20 s of a core: `make test` leaves it out
    <!-- not run: REASON -->        it is shown alone
    <!-- needs MODULE -->           it is left out where this isn't installed
    <!-- given: CODE -->            Python that makes what a reader has by then: files, and names for the blocks

A line `...` stands for lines that a page leaves out. Printed lines are as shown where their words are the same, and
their numbers are within 1 %: processors differ in the last bits. Seconds that a machine took are left out of pages.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import importlib.util
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from unittest import mock

from alpa_dejavu._util import units

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GUIDES = [ROOT / "README.md", DOCS / "start.md", *sorted(DOCS.glob("guides/*.md")), *sorted(DOCS.glob("concepts/*.md"))]
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LEFT_OUT = "..."
_COLUMNS, _ALIKE, _SLOW_S = 80, 0.6, 20.0
_BLOCK = re.compile(
    r"(?P<marks>(?:^<!--(?:(?!-->).)*-->\n)*)^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"<!-- (file|printed|within|slow|not run|needs|given)[: ]*(.*?)\s*-->", re.DOTALL)
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?)")


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A block of code of a page: the offset and the number of its first line, its text and what its marks say."""

    start: int
    line: int
    language: str
    text: str
    marks: Mapping[str, str]

    @property
    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """The commands of a shell, each in one line, with the lines that are shown below it."""
        prompt = "$ " if self.language == "console" else ""
        command, shown = "", list[str]()
        for line in self.text.replace("\\\n", " ").splitlines():
            if not line.startswith(prompt):
                shown.append(line)
            elif line.removeprefix(prompt).strip():
                if command:
                    yield command, shown
                command, shown = " ".join(line.removeprefix(prompt).split()), []
        if command:
            yield command, shown


def blocks(text: str) -> list[Block]:
    """Returns the blocks of a page in their order."""
    return [
        Block(
            found.start("text"),
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["text"],
            dict(_MARK.findall(found["marks"])),
        )
        for found in _BLOCK.finditer(text)
    ]


def shell_commands() -> list[str]:
    """Returns the command lines of alpa-dejavu that all pages show, each once."""
    shown = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))]
    lines = [line for block in shown if block.language in ("bash", "console", "") for line, _ in block.commands]
    return list(dict.fromkeys(line.partition(" #")[0] for line in lines if line.startswith("alpa-dejavu ")))


class Terminal(io.StringIO):
    """A text that commands take for a terminal."""

    def isatty(self) -> bool:
        """Returns that it is one."""
        return True


@dataclasses.dataclass
class Run:
    """Runs the blocks of a page in a folder; `told` has what is wrong, and `changes` what blocks print today."""

    page: pathlib.Path
    folder: pathlib.Path
    text: str = dataclasses.field(init=False)
    told: list[str] = dataclasses.field(default_factory=list)
    changes: dict[Block, str] = dataclasses.field(default_factory=dict)
    names: dict[str, object] = dataclasses.field(default_factory=lambda: {"__name__": "page", "ROOT": ROOT})
    printed: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[Block, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = self.page.read_text(encoding="utf-8")

    def blocks(self, quick: bool = False) -> Run:
        """Runs all blocks, or with `quick` those that aren't slow; an error in one doesn't end the others."""
        shutil.copytree(ROOT / "examples", self.folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        before = set(sys.modules)
        with _inside(self.folder):
            for block in blocks(self.text):
                if quick and "slow" in block.marks:
                    continue
                if "needs" in block.marks and importlib.util.find_spec(block.marks["needs"]) is None:
                    continue
                begin_s = _core_s()
                try:
                    self._run(block)
                except Exception:
                    self._tell(block, traceback.format_exc(limit=-2))
                self.seconds[block] = _core_s() - begin_s
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]
        return self

    def filled(self) -> str:
        """Returns the page with what its blocks print."""
        text = self.text
        for block, changed in sorted(self.changes.items(), key=lambda item: -item[0].start):
            text = text[: block.start] + changed + text[block.start + len(block.text) :]
        return text

    def _tell(self, block: Block, said: str) -> None:
        self.told.append(f"{self.page.relative_to(ROOT)}:{block.line}: {said}")

    def _run(self, block: Block) -> None:
        if "given" in block.marks:
            exec(block.marks["given"], self.names)
        if "file" in block.marks:
            self._write(block)
        elif "printed" in block.marks:
            self._compare(block, {0: (block.text.splitlines(), self.printed)})
        elif "not run" in block.marks or block.language == "text":
            return
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as text:
                exec(compile("\n" * (block.line - 1) + block.text, str(self.page), "exec"), self.names)
            self.printed = _lines(text.getvalue())
        elif block.language in ("bash", "console"):
            pairs = []
            for command, shown in block.commands:
                self.printed = self._ran(block, command, shown)
                pairs.append((shown, self.printed))
            if block.language == "console":
                self._compare(block, dict(enumerate(pairs)))
        else:
            self._tell(block, f"the language is {block.language!r}, but must be one that `make guides` knows")

    def _ran(self, block: Block, command: str, shown: Sequence[str]) -> list[str]:
        """What a command prints, in this process where it is ours: starting one takes longer than most commands."""
        words = shlex.split(command, comments=True)
        if words[0] == "cd":
            os.chdir(words[1])
            return []
        environment = {"COLUMNS": str(_COLUMNS), "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        with mock.patch.dict(os.environ, environment):
            if words[0] != "alpa-dejavu":
                ended = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
                status, out, aside = ended.returncode, ended.stdout, ended.stderr
            else:
                status, out, aside = _command(words[1:])
        if bool(status) != any(line.startswith("Error: ") for line in shown):
            self._tell(block, f"{command} ends with {status}:\n{out[-2000:]}{aside[-2000:]}")
        lines = _lines(out)
        wide = [line for line in lines if len(line) > _COLUMNS or "…" in line or re.search(r"\de[-+]\d", line)]
        if words[0] == "alpa-dejavu" and wide:
            self._tell(block, f"{command} prints what is cut, has exponents, or is wider than 80 columns: {wide}")
        return lines + textwrap.wrap(aside[aside.find("Error: ") :], _COLUMNS) * bool(status)

    def _write(self, block: Block) -> None:
        name, _, base = block.marks["file"].partition(", beside ")
        path = pathlib.Path(name)
        if path.exists() and path.read_text(encoding="utf-8") != block.text:
            self._tell(block, f"{name} has another text")
        path.write_text(block.text, encoding="utf-8")
        if base:
            from alpa_dejavu.clusters import read_cluster
            from alpa_dejavu.playground.scenarios import read_scenario

            whole = _with_keys(pathlib.Path(base).read_text(encoding="utf-8"), block.text)
            path.write_text(whole, encoding="utf-8")
            (read_scenario if "until:" in whole else read_cluster)(path)

    def _compare(self, block: Block, pairs: Mapping[int, tuple[list[str], list[str]]]) -> None:
        """Notes where lines aren't printed as they are shown, and writes the block with those that are printed."""
        near = float(block.marks.get("within", "1 %").removesuffix(" %")) / 100
        if all(not shown or is_shown(shown, printed, near) for shown, printed in pairs.values()):
            return
        self._tell(block, "it prints something else; `make guides` writes the page anew")
        lines = iter(block.text.splitlines())
        changed: list[str] = []
        if block.language == "console":
            for (shown, printed), (begin, end) in zip(pairs.values(), _typed(block.text), strict=True):
                changed += block.text.splitlines()[begin:end]
                changed += refreshed(shown, printed) if shown else []
        else:
            changed = refreshed(list(lines), pairs[0][1])
        self.changes[block] = "".join(f"{line}\n" for line in changed)


@contextlib.contextmanager
def _inside(folder: pathlib.Path) -> Iterator[None]:
    """Works in a folder, from which modules are imported as `python -m` does."""
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        with mock.patch.object(sys, "path", ["", *sys.path]):
            yield
    finally:
        os.chdir(before)


def _core_s() -> float:
    """The seconds that this process and those that it waited for were on a core."""
    return sum(os.times()[:4])


def _typed(text: str) -> Iterator[tuple[int, int]]:
    """The first line of each command in a block of a console, and the one after its last."""
    lines = text.splitlines()
    for begin, line in enumerate(lines):
        if line.startswith("$ "):
            end = begin + 1
            while lines[end - 1].endswith("\\"):
                end += 1
            yield begin, end


def _with_keys(base: str, text: str) -> str:
    """The text of a YAML file in which some keys of the outermost mapping are those of a further text."""
    keys = "|".join(re.findall(r"^(\w+):", text, re.MULTILINE))
    return re.sub(rf"^(?:{keys}):.*\n(?:[ -].*\n)*", "", base, flags=re.MULTILINE) + text


def _command(words: Sequence[str]) -> tuple[int, str, str]:
    """The exit status of a command of ours, and what it prints on standard output and beside it."""
    from alpa_dejavu.cli.main import main

    status = 0
    with contextlib.redirect_stdout(Terminal()) as out, contextlib.redirect_stderr(io.StringIO()) as aside:
        try:
            main(list(words), prog_name="alpa-dejavu")
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, out.getvalue(), aside.getvalue()


def _lines(text: str) -> list[str]:
    """The lines of a text without what colours them, and without the seconds that a machine took to plan."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).rstrip()
    return [line.rstrip() for line in re.sub(r"^planned in .*(?:\n {24}.*)*", LEFT_OUT, text, flags=re.M).splitlines()]


def is_shown(shown: Sequence[str], printed: Sequence[str], near: float = 0.01) -> bool:
    """Whether lines are printed as a page shows them, their numbers so near; `...` stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0].strip() == LEFT_OUT:
        return any(is_shown(shown[1:], printed[begin:], near) for begin in range(len(printed) + 1))
    return bool(printed) and _is_alike(shown[0], printed[0], near) and is_shown(shown[1:], printed[1:], near)


def _is_alike(shown: str, printed: str, near: float) -> bool:
    ours, theirs = (_NUMBER.split(" ".join(line.split())) for line in (shown, printed))
    if [text.split() for text in ours[::2]] != [text.split() for text in theirs[::2]]:
        return False
    pairs = zip(ours[1::2], theirs[1::2], strict=True)
    numbers = [[float(number.replace(",", "")) for number in pair] for pair in pairs]
    return all(abs(one - other) <= near * abs(other) for one, other in numbers)


def refreshed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Returns printed lines, without those that a page leaves out: between lines that are most like those around.

    All lines are returned where nothing is like what was shown.
    """
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    dots = next((line for line in shown if line.strip() == LEFT_OUT), "")
    lines, begin = list[str](), 0
    for number, part in enumerate(parts):
        lines += [dots] * (number > 0)
        if not part:
            continue
        first = _likest(part[0], printed, begin) if number else 0
        last = _likest(part[-1], printed, first or 0) if number < len(parts) - 1 else len(printed) - 1
        if first is None or last is None:
            return list(printed)
        lines += printed[first : last + 1]
        begin = last + 1
    return lines


def _likest(line: str, lines: Sequence[str], begin: int) -> int | None:
    """The number of the line from `begin` on that is most like a line, if one is."""
    masked = [" ".join(_NUMBER.sub("0", text).split()) for text in (line, *lines[begin:])]
    likeness = [difflib.SequenceMatcher(None, masked[0], text, autojunk=False).ratio() for text in masked[1:]]
    best = max(likeness, default=0.0)
    return begin + likeness.index(best) if best >= _ALIKE else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs pages, and writes them unless they are only checked; returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=pathlib.Path, default=GUIDES, help="all that have guides, if none")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a page isn't current")
    parser.add_argument("--quick", action="store_true", help="leave out what is marked as slow")
    given = parser.parse_args(arguments)
    told = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALPA_DEJAVU_CACHE"] = f"{folder}/cache"
        for number, page in enumerate(path.resolve() for path in given.pages):
            own = pathlib.Path(folder, str(number))
            own.mkdir()
            run = Run(page, own).blocks(given.quick)
            told += len(run.told)
            print("\n".join(run.told) or f"{page.relative_to(ROOT)} is current")
            for block, seconds in run.seconds.items():
                if seconds > _SLOW_S and "slow" not in block.marks:
                    place = f"{page.relative_to(ROOT)}:{block.line}"
                    print(f"{place} took {units.seconds(seconds)}; mark it as slow", flush=True)
            if run.changes and not given.check:
                page.write_text(run.filled(), encoding="utf-8")
    return int(told > 0)


if __name__ == "__main__":
    sys.exit(main())
