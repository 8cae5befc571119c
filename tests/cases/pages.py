"""Pages as people get them: what their text has, what their scripts draw, and what a browser makes of them."""

import base64
import gzip
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import urllib.parse

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
WIDTHS = 400, 1400
_LAYOUT = pathlib.Path(__file__).with_name("layout.js")

_PACKED = re.compile(r'(<script type="text/plain" id="(\w+)">)([\w+/=]*)')


class Page(html.parser.HTMLParser):
    """The tags, the texts outside of scripts, and the rows of the tables."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.rows, self._inside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._inside):
            self.texts.append(data)
            if self._inside[-1:] in (["td"], ["th"]):
                self.rows[-1].append(data)


def page_data(page):
    """What a page's scripts draw."""
    packed = {name: content for _, name, content in _PACKED.findall(page)}
    return json.loads(gzip.decompress(base64.b64decode(packed["data"])))


def own_text(page):
    """A page without plotly.js and its data."""
    return _PACKED.sub(r"\1", page)


def browsed(tmp_path, page):
    """A page as a browser has made it, and what it complained of."""
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    ended = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=30000", "--dump-dom", (tmp_path / "page.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return ended.stdout, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]


def laid_out(tmp_path, pages):
    """How a browser lays pages out at each of `WIDTHS`, by name and width: faults, legends, and the heads of tables."""
    frames = ""
    for name, page in pages.items():
        script = f"<script>const NAME = {json.dumps(name)};\n{_LAYOUT.read_text(encoding='utf-8')}</script></body>"
        allowed = re.sub("default-src 'none'; (?!script)", "default-src 'none'; script-src 'unsafe-inline'; ", page)
        (tmp_path / f"{name}.html").write_text(allowed.replace("</body>", script), encoding="utf-8")
        frames += "".join(f'<iframe src="{name}.html" width="{width}" height="900"></iframe>' for width in WIDTHS)
    heard = "<script>onmessage = event => document.body.append(`[[${btoa(encodeURIComponent(event.data))}]]`);</script>"
    text, _ = browsed(tmp_path, f"<body>{heard}{frames}</body>")
    told = [base64.b64decode(row).decode() for row in re.findall(r"\[\[([\w+/=]+)\]\]", text)]
    rows = [json.loads(urllib.parse.unquote(row)) for row in told]
    return {(row["name"], row["width"]): row for row in rows}
