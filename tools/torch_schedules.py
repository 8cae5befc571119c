"""Writes what PyTorch's pipelining says of schedules: of ours, and of broken ones, for tests without PyTorch.

    python tools/torch_schedules.py [FILE]

It needs PyTorch, the extra `exports`. The file is tests/exports/torch_schedules.json unless another one is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "exports" / "torch_schedules.json"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

NAMED = {
    "1f1b": 1, "1f1b_overlap_friendly": 1, "gpipe": 1, "zb_h1": 1, "interleaved": 2, "interleaved_3": 3, "zb_v": 2,
    "v_half": 2, "v_min": 2, "dualpipe_v": 2,
}  # fmt: skip
"""Our schedules by name, each with its stages on a device."""
SIZES = ((2, 4), (4, 8))
"""Numbers of devices and micro-batches."""
BROKEN = {
    "a backward is missing": "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n",
    "a forward is missing": "0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "a backward before its forward": "0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1F1\n",
    "a stage on two devices": "0F0,0F1,0B0,0B1\n1F0,1B0,0F1,1B1,1F1\n",
    "weights before inputs": "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1W0,1I0,1F1,1I1,1W1\n",
    "weights without inputs": "0F0,0F1,0B0,0B1\n1F0,1W0,1F1,1B1\n",
    "two devices wait for each other": "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
    "no kind of task": "0F0,0X0\n1F0,1B0\n",
    "no number": "0F0,F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
}


def text_of(name: str, devices: int, micro_batches: int) -> str:
    """The text of the file of one of our schedules."""
    from alpa_dejavu.schedules import named_schedule
    from alpa_dejavu.schedules.schedule_file import schedule_text

    return schedule_text(named_schedule(name, devices * NAMED[name], micro_batches))


def told() -> dict[str, Any]:
    """What PyTorch says: of each schedule's text why it is refused, empty if it isn't."""
    import torch

    from torch_runtime import refusal

    texts = {
        f"{name}, {devices} devices, {count} micro-batches": text_of(name, devices, count)
        for name in NAMED
        for devices, count in SIZES
    }
    cases = [{"name": name, "text": text, "refused": refusal(text)} for name, text in (texts | BROKEN).items()]
    return {"version": 1, "torch": torch.__version__.split("+")[0], "cases": cases}


def main() -> None:
    """Writes the file."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_text(json.dumps(told(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
