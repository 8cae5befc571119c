"""Units are given to numbers in one place, `alpa_dejavu/_util/units.py`: no other file writes one next to a figure."""

import ast
import pathlib
import re

import alpa_dejavu

ROOT = pathlib.Path(alpa_dejavu.__file__).parent.parent
FILES = [
    path
    for folder in ("alpa_dejavu", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != ROOT / "alpa_dejavu/_util/units.py"
]
LARGE = r"(?:ms|us|µs|ns|[kMGT]i?B|[kMGTP]?FLOP)(?:/s)?|B/s|bytes/s|samples/s"
AFTER_A_VALUE = re.compile(rf"(?: (?:s|bytes?|min|hours)| ?(?:{LARGE}))(?![\w/])")
"""The beginning of a text that follows a value."""
AFTER_A_FIELD = re.compile(rf"(?:%[-+.\d]*[defgs]|%?\{{[^{{}}]*\}})(?: (?:s|bytes?)| ?(?:{LARGE}))(?![\w/])")
"""A field of a `%` or `format` template, or of plotly's, with a unit."""
AFTER_A_WORD = re.compile(rf"(?:^|[a-z]) \(?(?:{LARGE})\)?$")
"""A head of a column, or a text that is put after a number."""
POWERS = {1e3, 1e6, 1e9, 1e12, 2**10, 2**20, 2**30}


def number(node):
    """The value of a literal, and of a power of literals; None where it isn't one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = number(node.left), number(node.right)
        return None if base is None or power is None or power > 64 else base**power
    return None


def converts(node):
    """Whether a value is multiplied or divided by a thousand, by 2**20, or the like."""
    return any(
        isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Mult | ast.Div)
        and not {number(each.left), number(each.right)}.isdisjoint(POWERS)
        for each in ast.walk(node)
    )


def formatted_units(source):
    """The line and the text of each unit that a source formats by itself."""
    tree = ast.parse(source)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, after in zip(node.values, [*node.values[1:], None], strict=True):
                if not isinstance(value, ast.FormattedValue):
                    continue
                text = after.value if isinstance(after, ast.Constant) else ""
                if AFTER_A_VALUE.match(text) or converts(value.value):
                    yield value.lineno, ast.unparse(value.value) + text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            found = AFTER_A_FIELD.search(node.value) or AFTER_A_WORD.search(node.value)
            if found:
                yield node.lineno, found.group()


def test_units_are_formatted_in_one_place():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in FILES
        for line, text in formatted_units(path.read_text(encoding="utf-8"))
    ]
    assert found == []
