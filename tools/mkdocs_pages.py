"""What `mkdocs.yml` asks of each page of docs/: marks go, and links to files that aren't pages lead to their sources.

MkDocs knows the files in docs/ alone. A link to the README, a source or a test becomes the file's path as code, which
is right in any checkout; the file has to be there.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page without marks, whose links outside of docs/ are named instead.

    Raises:
        FileNotFoundError: such a link leads nowhere.
    """
    folder = DOCS / pathlib.Path(page.file.src_path).parent
    text = re.sub(r"^<!--.*?-->\n|<!--.*?-->", "", markdown, flags=re.DOTALL | re.MULTILINE)
    defined = {name: target for name, target in _DEFINITION.findall(text) if _outside(folder, target)}
    for name in defined:
        text = re.sub(rf"\[([^\]]+)\]\[{re.escape(name)}\]", rf"[\1]({defined[name]})", text)
    text = _DEFINITION.sub(lambda line: "" if line[1] in defined else line[0], text)
    return _LINK.sub(lambda link: _named(folder, link) if _outside(folder, link[2]) else link[0], text)


def _outside(folder: pathlib.Path, target: str) -> bool:
    path = target.partition("#")[0]
    return bool(path) and "://" not in path and not (folder / path).resolve().is_relative_to(DOCS)


def _named(folder: pathlib.Path, link: re.Match[str]) -> str:
    path = (folder / link[2].partition("#")[0]).resolve()
    if not path.exists():
        raise FileNotFoundError(f"{link[0]} leads to {path}, which isn't there")
    return f"{link[1]} (`{path.relative_to(ROOT)}`)"
