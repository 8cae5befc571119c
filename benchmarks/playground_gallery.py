"""Questions about distributed training, each a scenario file of the playground, and the answers that its runs give.

    python benchmarks/playground_gallery.py [--only NAME ...] [--json FILE]

The files are in `examples/playground/gallery`; `alpa-dejavu playground run FILE` gives one answer. Learning rates are
those of the files, the same for both sides. An answer is yes or no where the 90 % interval of the ratio over seeds has
one sign. Exit status 1 if fewer than two answers are no: a gallery in which all helps would be chosen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

from tqdm import tqdm

from alpa_dejavu.playground.scenarios import answer, read_scenario, run_scenario
from harness import Figure, Results, Table, options, wrong_input_told

GALLERY = Path(__file__).parents[1] / "examples" / "playground" / "gallery"
FEWEST_NO = 2


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all scenarios of the gallery; exit status 1 if too few answers are no."""
    names = sorted(path.stem for path in GALLERY.glob("*.yaml"))
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="only these files")
    given = parser.parse_args(arguments)
    results = Results(given.json, {})
    rows = [results.known("answers", name, answered, name) for name in tqdm(given.only, "scenarios")]
    columns = {
        "file": "{file}",
        "question": "{question}",
        "answer": "{verdict}",
        "figures": lambda row: row["figures"].partition(". ")[0].rstrip("."),
        "and": lambda row: row["figures"].partition(". ")[2].rstrip("."),
    }
    refused = sum(row["verdict"] == "no" for row in rows)
    held = refused >= FEWEST_NO or len(rows) < len(names)
    figures = [Figure("answers", "gallery", f"at least {FEWEST_NO} are no", f"{refused} of {len(rows)}", held)]
    return results.shown(Table.of(rows, columns), figures=figures)


def answered(name: str) -> dict[str, Any]:
    """The question of a scenario, and the answer of its runs."""
    runs = run_scenario(read_scenario(GALLERY / f"{name}.yaml"))
    found = answer(runs)
    assert runs.question is not None, "each file of the gallery has a question"
    assert found is not None, "a question has an answer"
    return {"file": name, "question": runs.question.text, "verdict": found.verdict, "figures": found.text}


if __name__ == "__main__":
    raise SystemExit(main())
