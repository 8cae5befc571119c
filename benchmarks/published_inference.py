"""Published seconds of inference beside those that `plan --inference` predicts; nothing is fitted to them.

    python benchmarks/published_inference.py [--json FILE]

Each row is priced as `serve_plan` does it for anybody, with the published devices of a stage, batch and lengths, by the
calibration that is taken by default. Both sources measured standard transformers in half precision on A100 of 80 GB.

- FasterTransformer gives the seconds of a whole answer: the time to the first token, and one for each token after it.
  The ends of the interval are the sums of both phases' ends, as both mostly err in the same direction. Here are its
  rows of one sequence on one host (of the many lengths for GPT-20B three), and for each model one of a large batch.
- TensorRT-LLM gives the time to the first token. GPT-J computes attention beside the feed-forward layer, of which one
  device sees nothing. Its other models have gated layers and fewer keys than queries, which no known model has.

References:
    https://github.com/NVIDIA/FasterTransformer, docs/gpt_guide.md, "Large model inference with model parallel".
    https://github.com/NVIDIA/TensorRT-LLM, docs/source/performance.md of version 0.6.1, "Low Latency", A100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import Kraken
from alpa_dejavu.planning.inference import Lengths, decoder, serve_plan
from harness import Figure, Results, Table, options

INSIDE, WITHIN = 0.8, 1.5
"""At least so many of the published seconds are inside their interval; and the factor that most are within."""
MODELS = {
    "GPT-175B": Kraken(12288, 96, 96, 1, 4, vocabulary=51200),
    "GPT-89B": Kraken(12288, 48, 96, 1, 4, vocabulary=51200),
    "GPT-20B": Kraken(6144, 44, 48, 1, 4, vocabulary=51200),
    "GPT-6.7B": Kraken(4096, 32, 32, 1, 4, vocabulary=51200),
    "GPT-1.3B": Kraken(2048, 24, 32, 1, 4, vocabulary=51200),
    "GPT-350M": Kraken(1024, 24, 16, 1, 4, vocabulary=51200),
    "GPT-J 6B": Kraken(4096, 28, 16, 1, 4, vocabulary=50400),
}
FASTER_TRANSFORMER = (
    ("GPT-175B", 8, 1, 128, 8, 488.86),
    ("GPT-175B", 8, 1, 512, 32, 1719.96),
    ("GPT-175B", 8, 16, 512, 32, 3706.23),
    ("GPT-89B", 8, 1, 128, 8, 279.44),
    ("GPT-89B", 8, 1, 512, 32, 887.52),
    ("GPT-89B", 8, 16, 512, 32, 1952.2),
    ("GPT-20B", 1, 1, 20, 8, 225),
    ("GPT-20B", 2, 1, 20, 8, 147),
    ("GPT-20B", 4, 1, 20, 8, 102),
    ("GPT-20B", 8, 1, 20, 8, 89),
    ("GPT-20B", 1, 1, 60, 20, 560),
    ("GPT-20B", 2, 1, 60, 20, 358),
    ("GPT-20B", 4, 1, 60, 20, 248),
    ("GPT-20B", 8, 1, 60, 20, 212),
    ("GPT-20B", 1, 1, 200, 200, 5648),
    ("GPT-20B", 2, 1, 200, 200, 3544),
    ("GPT-20B", 4, 1, 200, 200, 2481),
    ("GPT-20B", 8, 1, 200, 200, 2080),
    ("GPT-20B", 8, 64, 200, 200, 3621),
    ("GPT-6.7B", 1, 1, 128, 8, 98.29),
    ("GPT-6.7B", 1, 1, 512, 32, 384.70),
    ("GPT-6.7B", 1, 64, 512, 32, 3306.41),
    ("GPT-1.3B", 1, 1, 128, 8, 36.76),
    ("GPT-1.3B", 1, 1, 512, 32, 135.85),
    ("GPT-1.3B", 1, 64, 512, 32, 1036.21),
    ("GPT-350M", 1, 1, 128, 8, 25.43),
    ("GPT-350M", 1, 1, 512, 32, 92.01),
    ("GPT-350M", 1, 64, 512, 32, 529.18),
)
"""Model, tensor parallelism, batch, tokens of a prompt and of an output, milliseconds of the whole answer."""
TENSORRT = (("GPT-J 6B", 1, 1, 128, 1, 12), ("GPT-J 6B", 1, 1, 2048, 1, 129))
"""The same; the answer is the first token."""
SOURCES = {"FasterTransformer": FASTER_TRANSFORMER, "TensorRT-LLM": TENSORRT}
COLUMNS = {
    "from": "{source}",
    "model": "{model}",
    "GPUs": "{gpus}",
    "batch": "{batch}",
    "prompt": "{prompt}",
    "output": "{output}",
    "published": "{published_s:seconds}",
    "predicted": "{predicted_s:seconds}",
    "90 %": lambda row: " to ".join(map(units.seconds, row["interval_s"])),
    "ratio": "{ratio:.2f}",
    "inside": lambda row: "yes" if row["inside"] else "no",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; exit status 1 if the aim is missed."""
    given = options(__doc__).parse_args(arguments)
    results = Results(given.json, rows=[])
    published = [(source, *row) for source, rows in SOURCES.items() for row in rows]
    for one in tqdm(published, unit="row"):
        results["rows"].append(_row(*one))
        results.write()
    return results.shown(Table.of(results["rows"], COLUMNS), figures=list(_figures(results["rows"])))


def _row(
    source: str, model: str, gpus: int, batch: int, prompt: int, output: int, published_ms: float
) -> dict[str, Any]:
    """One published figure beside the predicted one."""
    plan = serve_plan(
        decoder(MODELS[model]), "dgx-a100", Lengths.fixed(prompt, output), batch=batch, tensor_parallel=gpus, stages=1
    )
    first, following = plan.first_token, plan.next_token
    predicted_s = first.seconds + (output - 1) * following.seconds
    low, high = (a + (output - 1) * b for a, b in zip(first.interval_s, following.interval_s, strict=True))
    seconds = published_ms * 1e-3
    return {
        "source": source, "model": model, "gpus": gpus, "batch": batch, "prompt": prompt, "output": output,
        "published_s": seconds, "predicted_s": predicted_s, "interval_s": (low, high), "ratio": predicted_s / seconds,
        "inside": low <= seconds <= high,
    }  # fmt: skip


def _figures(rows: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """The aims."""
    for source in SOURCES:
        found = [row for row in rows if row["source"] == source]
        share = sum(row["inside"] for row in found) / len(found)
        yield Figure(source, "inside 90 %", f"at least {INSIDE:.0%}", f"{share:.0%} of {len(found)}", share >= INSIDE)
    off = sorted(max(row["ratio"], 1 / row["ratio"]) for row in rows)
    middle = off[len(off) // 2]
    yield Figure("both", "factor, median", f"at most {WITHIN}", f"{middle:.2f}", middle <= WITHIN)


if __name__ == "__main__":
    raise SystemExit(main())
