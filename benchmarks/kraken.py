"""Kraken beside standard transformers: the predicted time to the first token.

    python benchmarks/kraken.py [--only PART ...] [--json FILE]

- `published`: the 20 cases of the paper's mean, five sizes of GPT-3 on 4 and 8 A100 with NVSwitch, prompts of 128 and
  2048 tokens. Ways are as many as devices; heads and layers are those of the standard transformer. The paper's widths
  aren't at hand: a way is as wide as equal parameters of a layer ask for, to the next multiple of 8 for each head. Not
  all of these models fit onto A100 in half precision, so memory isn't looked at.
- `names`: the models by name on 2, 4 and 8 devices, as far as these divide the ways, for several lengths.

Gains are the standard transformer's seconds over Kraken's, less 1; the mean is a geometric one. "Fewer" is what a
Kraken gains where collectives hide nothing (`--overlap none`), "hidden" what is added where they do. No device was
measured.

References:
    Prabhakar, Zhang and Wentzlaff, Kraken: Inherently Parallel Transformers For Efficient Multi-Device Inference,
    NeurIPS 2024: figures of section 4.3 (sizes, lengths and devices), abstract (35.6 %).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.models import Kraken, model_size
from alpa_dejavu.planning.inference import Lengths, ServingPlan, decoder, serve_plan
from alpa_dejavu.problem import Cluster
from harness import Figure, Results, Table, options

PUBLISHED, POINTS = 0.356, 0.10
"""The published mean gain, and how far off the predicted one may be."""
GPT3 = {
    "1.3B": (24, 2048, 16), "6.7B": (32, 4096, 32), "13B": (40, 5120, 40), "65B": (80, 8192, 64),
    "175B": (96, 12288, 96),
}  # fmt: skip
"""Layers, width and heads. 65B is LLaMA's; the others are those of Brown et al., table 2.1, 13B of a rounder width."""
LENGTHS = (128, 2048)
NAMED = (
    ("kraken-125m-2", "gpt2-125m"), ("kraken-125m-4", "gpt2-125m"), ("kraken-125m-6", "gpt2-125m"),
    ("kraken-350m-2", "gpt2-350m"), ("kraken-350m-4", "gpt2-350m"), ("kraken-760m-4", "gpt2-760m"),
)  # fmt: skip
NAMED_LENGTHS = (128, 512, 1024)
PARTS = ("published", "names")
COLUMNS = {
    "model": "{model}",
    "devices": "{devices}",
    "prompt": "{prompt}",
    "standard": "{standard_s:seconds}",
    "Kraken": "{kraken_s:seconds}",
    "90 %": lambda row: " to ".join(map(units.seconds, row["interval_s"])),
    "gain": "{gain:+.1%}",
    "fewer": "{fewer:+.1%}",
    "hidden": "{hidden:+.1%}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; exit status 1 if an aim is missed."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    given = parser.parse_args(arguments)
    results = Results(given.json, {})
    shown: list[Table | str] = []
    figures: list[Figure] = []
    for part, cases, title in (
        ("published", _published(), "the published cases"), ("names", _named(), "the models by name"),
    ):  # fmt: skip
        if part in given.only:
            known = [results.known(part, " ".join(map(str, case[:3])), _compared, *case) for case in tqdm(cases, part)]
            shown.append(Table.of(known, COLUMNS, title))
            figures += _figures(part, known)
    return results.shown(*shown, figures=figures)


Case = tuple[str, int, int, Kraken, Kraken]


def _published() -> list[Case]:
    """The published cases: the name, devices and prompt, and the sizes of both kinds."""
    return [
        (
            name, ways, prompt,
            Kraken(width, layers, heads, 1, expansion=4, sequence=prompt),
            Kraken(way_width(width, heads, ways), layers, heads, ways, sequence=prompt),
        )
        for ways in (4, 8) for name, (layers, width, heads) in GPT3.items() for prompt in LENGTHS
    ]  # fmt: skip


def way_width(width: int, heads: int, ways: int) -> int:
    """The width of a way with which a layer has the parameters of a standard one, to a multiple of 8 for each head.

    A standard layer has 12 times the square of its width, a Kraken's 8 times for each way.

    >>> way_width(1536, 16, 4)
    928
    """
    unit = heads // ways * 8
    return round(width * math.sqrt(12 / 8 / ways) / unit) * unit


def _named() -> list[Case]:
    """The models by name on all devices that divide their ways."""
    found = []
    for name, beside in NAMED:
        standard, kraken = model_size(beside), model_size(name)
        assert isinstance(standard, Kraken), "this name is of its family"
        assert isinstance(kraken, Kraken), "and so is this one"
        found += [
            (name, devices, prompt, standard, kraken)
            for devices in (2, 4, 8) for prompt in NAMED_LENGTHS if kraken.ways % devices == 0
        ]  # fmt: skip
    return found


def _compared(name: str, devices: int, prompt: int, standard: Kraken, kraken: Kraken) -> dict[str, Any]:
    """One case: the seconds to the first token of both kinds, with and without hidden collectives."""
    served = decoder(kraken)

    def first_token(model: Any, overlap: str) -> ServingPlan:
        lengths = Lengths.fixed(prompt, 1)
        return serve_plan(model, _devices(), lengths, tensor_parallel=devices, stages=1, overlap=overlap)

    beside = first_token(decoder(standard), "streams").first_token
    exposed, hidden = (first_token(served, overlap).first_token for overlap in ("none", "streams"))
    fewer, gain = (beside.seconds / one.seconds - 1 for one in (exposed, hidden))
    return {
        "model": name, "devices": devices, "prompt": prompt, "width": kraken.hidden, "standard_s": beside.seconds,
        "standard_interval_s": beside.interval_s, "kraken_s": hidden.seconds, "interval_s": hidden.interval_s,
        "computing_s": (beside.computing_s, hidden.computing_s),
        "collectives_s": (beside.collectives_s, exposed.collectives_s, hidden.collectives_s),
        "gain": gain, "fewer": fewer, "hidden": gain - fewer,
    }  # fmt: skip


def _devices() -> Cluster:
    """Eight A100 whose memory nothing is too large for."""
    cluster = named_cluster("dgx-a100")
    (host,) = cluster.hosts
    roomy = dataclasses.replace(host.device, memory_bytes=1e12)
    return dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=roomy),))


def _figures(part: str, rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """The mean gain of a part, which is judged where it was published."""
    mean, fewer = (statistics.geometric_mean(1 + row[key] for row in rows) - 1 for key in ("gain", "fewer"))
    said = f"{mean:+.1%}, without overlap {fewer:+.1%}"
    if part != "published":
        return [Figure(part, "mean gain", "sooner", said, mean > 0)]
    aim = f"{PUBLISHED:+.1%} within {POINTS:.0%} points"
    return [Figure(part, "mean gain", aim, said, abs(mean - PUBLISHED) <= POINTS)]


if __name__ == "__main__":
    raise SystemExit(main())
