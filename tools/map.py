"""Draws the packages of alpa_dejavu and who imports whom, from their sources, between two marks of docs/map.md.

`python tools/map.py` writes the drawing; `python tools/map.py --check` ends with 1 if the file's isn't the current one.
Imports that only a type checker follows don't count.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "alpa_dejavu"
_FOR_TYPES = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
BEGIN, END = "<!-- drawn by tools/map.py: begin -->", "<!-- drawn by tools/map.py: end -->"

Imports = Mapping[str, frozenset[str]]
"""Of each package the packages that it imports."""


def imports_of(source: pathlib.Path) -> Imports:
    """Which packages of `source`, a folder, import which others."""
    rooms = {init.parent.name for init in source.glob("*/__init__.py")}
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0]
        for module in imported(ast.parse(path.read_text(encoding="utf-8"))) if room in rooms else ():
            parts = module.split(".")
            if parts[0] == source.name and len(parts) > 1 and parts[1] in rooms - {room}:
                found[room].add(parts[1])
    return {room: frozenset(others) for room, others in found.items()}


def imported(tree: ast.AST, types: bool = False) -> Iterator[str]:
    """The dotted names of all that is imported somewhere below a node; with `types`, for a type checker alone, too."""
    for node in ast.iter_child_nodes(tree):
        if not types and isinstance(node, ast.If) and ast.unparse(node.test) in _FOR_TYPES:
            continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        yield from imported(node, types)


def top_down(imports: Imports) -> list[str]:
    """The packages, each before all that it imports; of those that could come next the first by name.

    Raises:
        ValueError: some import each other in a circle.
    """
    order: list[str] = []
    while len(order) < len(imports):
        free = [room for room in imports if room not in order and _importers(imports, room) <= set(order)]
        if not free:
            raise ValueError(f"{', '.join(sorted(set(imports) - set(order)))} import each other in a circle")
        order.append(min(free))
    return order


def _importers(imports: Imports, room: str) -> set[str]:
    return {other for other, used in imports.items() if room in used}


def reduced(imports: Imports) -> list[tuple[str, str]]:
    """The imports that don't follow from others: A to C is left out where A imports B, and B leads to C."""
    below: dict[str, set[str]] = {}
    for room in reversed(top_down(imports)):
        below[room] = set(imports[room]).union(*(below[used] for used in imports[room]))
    return [
        (room, used)
        for room in top_down(imports)
        for used in sorted(imports[room])
        if not any(used in below[other] for other in imports[room])
    ]


def drawing(imports: Imports) -> str:
    """A mermaid graph of the imports that don't follow from others."""
    order = top_down(imports)
    nodes = [f'  {room.strip("_")}["{room}/"]' for room in order]
    arrows = [f"  {room.strip('_')} --> {used.strip('_')}" for room, used in reduced(imports)]
    return "\n".join(["```mermaid", "graph TD", *nodes, *arrows, "```"])


def main() -> None:
    """Writes the drawing, or checks it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the drawing isn't current")
    parser.add_argument("--map", type=pathlib.Path, default=ROOT / "docs" / "map.md", help="the file with the marks")
    given = parser.parse_args()
    text = given.map.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        sys.exit(f"{given.map} must have one line {BEGIN!r} and, below it, one line {END!r}")
    before, rest = text.split(BEGIN)
    drawn = f"{before}{BEGIN}\n{drawing(imports_of(ROOT / PACKAGE))}\n{END}{rest.split(END)[1]}"
    if given.check and drawn != text:
        sys.exit(f"{given.map} isn't current; run python tools/map.py")
    if not given.check:
        given.map.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
