"""Ten models from elsewhere, planned as their users wrote them: each gets a plan, or an error that names the remedy.

    python benchmarks/models_from_elsewhere.py [--models NAME ...] [--json FILE]

`_elsewhere_models.py` has them: three of Hugging Face's flax models, of sizes that it makes itself, without weights;
networks of one's own in flax, in jax alone and in equinox; a scan, a mixture of experts, an RNN, and one that only
fine-tunes. It needs `transformers<5` and `equinox`, which alpa-dejavu doesn't; a model whose package isn't there is
told so. Each is planned for one p3.8xlarge, all seconds are predicted. Exit status 1 if a model has no plan.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("USE_TORCH", "0")
os.environ.setdefault("USE_TF", "0")

import _elsewhere_models as elsewhere
from alpa_dejavu import layers
from alpa_dejavu._util import units
from alpa_dejavu.planning import plan_model
from harness import Figure, Results, Table, options, wrong_input_told

Row = dict[str, Any]
MODELS = {
    "gpt2": "transformers",
    "bert": "transformers",
    "llama": "transformers",
    "flax": "flax",
    "plain_jax": "jax",
    "scan": "flax",
    "equinox": "equinox",
    "experts": "jax",
    "rnn": "flax",
    "fine_tuned": "flax",
}
"""The models' functions, and the package that each is written with."""
CLUSTER, BATCH, MICRO_BATCHES, LAYERS = "p3.8xlarge", 64, 8, 4


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Plans all models and prints the table; exit status 1 if one has no plan."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help="these alone")
    given = parser.parse_args(arguments)
    asked = {"cluster": CLUSTER, "batch": BATCH, "micro_batches": MICRO_BATCHES, "layers": LAYERS}
    results = Results(given.json, asked, simulated=True)
    rows = [results.known("rows", name, _row, name) for name in given.models]
    columns = {
        "model": "{model}",
        "written with": "{written_with}",
        "parameters": lambda row: f"{row['parameters']:,}" if row["parameters"] else "",
        "layers": "{layers}",
        "stages": "{stages}",
        "step": lambda row: "no plan" if row["step_s"] is None else units.seconds(row["step_s"]),
    }
    planned = sum(row["step_s"] is not None for row in rows)
    figure = Figure("models from elsewhere", "planned unmodified", f"{len(rows)}", f"{planned}", planned == len(rows))
    said = [f"{row['model']}: {row['said']}." for row in rows if row["said"]]
    return results.shown(Table.of(rows, columns), *said, figures=[figure])


def _row(name: str) -> Row:
    """The plan of a model in numbers, or why there is none."""
    function, package = getattr(elsewhere, name), MODELS[name]
    row: Row = {"model": (function.__doc__ or name).rstrip("."), "parameters": 0, "layers": "", "stages": ""}
    row |= {"step_s": None, "written_with": package}
    try:
        row["written_with"] = f"{package} {importlib.metadata.version(package)}"
        traced = layers.trace(function, batch=BATCH // MICRO_BATCHES)
        count = layers.most_layers(traced, LAYERS)
        plan = plan_model(function, CLUSTER, 1, BATCH, MICRO_BATCHES, layers=count, cache=False).plan
    except (ImportError, ValueError) as error:
        return row | {"said": str(error)}
    notes = "; ".join(traced.notes)
    return row | {
        "parameters": traced.num_parameters, "layers": count, "stages": len(plan.stages), "step_s": plan.step_s,
        "said": notes,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
