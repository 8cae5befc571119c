"""The commands that README and the docs show."""

import pathlib
import re

import alpa_dejavu

ROOT = pathlib.Path(alpa_dejavu.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shell_commands():
    """The lines of `alpa-dejavu` in blocks of code, which a reader is to type; each once."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"^```(?:sh|bash|console|text|)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^(?:\$ )?(alpa-dejavu .*)$", block, flags=re.MULTILINE):
                found[" ".join(line.partition(" #")[0].split())] = None
    return list(found)
