"""Schedules on stages alike beside the published formulas, and the improver on unlike pipelines that a seed draws.

    python benchmarks/schedules.py [--seed N] [--pipelines N] [--json FILE]

Bubbles and activations are of 2 to 16 devices with as many micro-batches as devices up to four times as many, by
simulation. A pipeline that is drawn has 2 to 8 devices with one or two chunks each, passes whose seconds differ by
about a third from stage to stage, and links of which some are slow; each device has room for what 1F1B keeps on the
first one. The improver begins with the best of the named schedules that fit. Exit status 1 if an aim is missed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.schedules import SCHEDULES, Schedule, named_schedule
from alpa_dejavu.simulation import StageTimes, improved_schedule, simulate
from harness import Figure, Results, Table, at_least, options

DEVICES = range(2, 17)
FASTEST_S, LONGEST_S = 0.05, 5.0
GAIN, GAP = 0.01, 0.03
ONE_CHUNK, V_SHAPED = ("gpipe", "1f1b", "zb_h1"), ("zb_v", "v_half", "v_min", "dualpipe_v")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Computes and shows all figures; exit status 1 if one is missed."""
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the pipelines (default: %(default)s)")
    parser.add_argument("--pipelines", type=at_least(1), default=50, help="how many (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seed": given.seed})
    alike = [_alike(name) for name in ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "v_half", "v_min")]
    rng = np.random.default_rng(given.seed)
    drawn = [_improved(*_pipeline(rng)) for _ in tqdm(range(given.pipelines), desc="pipelines")]
    large = {name: _seconds(name) for name in SCHEDULES}
    return results.shown(_alike_table(alike), _drawn_table(drawn), figures=_figures(alike, drawn, large))


def _alike(name: str) -> Row:
    """How far bubbles and activations are from the formulas, the worst over all sizes."""
    bubbles, kept, shares, room = [], [], [], []
    for devices in DEVICES:
        for size in (devices, 2 * devices, 3 * devices, 4 * devices):
            schedule = named_schedule(name, devices * schedule_form(name).chunks, size)
            bubble, whole = _bubble(schedule), 3.0 * (devices - 1)
            formula = {"interleaved": whole / 2, "zb_h1": devices - 1.0, "zb_v": 0.0}.get(name, whole)
            most = {"gpipe": size, "interleaved": min(devices + (devices - 1) / 2, size)}.get(name, devices)
            if name not in ("v_half", "v_min") and (name != "zb_v" or size >= 2 * devices):
                bubbles.append(abs(bubble - formula))
                kept.append(abs(float(schedule.peak_chunks.max()) / schedule.chunks - most))
            if size == 4 * devices:
                shares.append(bubble / whole)
                least = {"v_half": (devices + 2) // 2, "v_min": (devices + 4) // 3}.get(name, most)
                room.append(float(schedule.peak_chunks.max()) / schedule.chunks - least)
    exact = {"bubble_off": max(bubbles), "kept_off": max(kept)} if bubbles else {}
    return {"schedule": name, **exact, "share": max(shares), "over": max(room)}


def _bubble(schedule: Schedule) -> float:
    """The seconds that a device waits between its first and its last task, where all passes of a device take one."""
    each = schedule.chunks
    made = simulate([StageTimes(1 / each, 2 / each, backward_weight_s=1 / each)] * schedule.num_stages,
                    schedule.num_micro_batches, schedule)  # fmt: skip
    if schedule.name != "zb_v":
        return made.step_s - 3.0 * schedule.num_micro_batches
    spans = np.concatenate([made.forward_s, made.backward_s, made.weight_s], axis=1)
    busy = max(float(spans[list(own), :, 1].max() - spans[list(own), :, 0].min()) for own in schedule.stages_on)
    return busy - 3.0 * schedule.num_micro_batches


def _pipeline(rng: np.random.Generator) -> tuple[list[StageTimes], list[Schedule]]:
    """A pipeline of unlike stages, and the named schedules for it."""
    devices, chunks = int(rng.integers(2, 9)), int(rng.integers(1, 3))
    size = devices * int(rng.integers(2, 5))
    slow = rng.random() < 0.5
    stages = []
    for _ in range(devices * chunks):
        whole = np.exp(rng.normal(0, 0.3))
        forward, by_input, by_weight = (whole * np.exp(rng.normal(0, sigma)) for sigma in (0.1, 0.2, 0.2))
        send = float(rng.choice([0.0, 0.05, 0.3 if slow else 0.1]) * np.exp(rng.normal(0, 0.3)))
        stages.append(
            StageTimes(
                forward, by_input + by_weight, backward_weight_s=by_weight, forward_send_s=send, backward_send_s=send,
                activation_bytes=1.0, memory_limit_bytes=devices * chunks + 0.5,
            )
        )  # fmt: skip
    names = ONE_CHUNK if chunks == 1 else V_SHAPED
    return stages, [named_schedule(name, devices * chunks, size) for name in names]


def _improved(stages: list[StageTimes], begin: list[Schedule]) -> Row:
    started = time.perf_counter()
    found = improved_schedule(stages, begin)
    return {
        "devices": begin[0].num_devices,
        "chunks": begin[0].chunks,
        "micro_batches": begin[0].num_micro_batches,
        "gain": found.begun_s / found.step_s - 1,
        "gap_before": found.begun_s / found.floor_s - 1,
        "gap": found.gap,
        "seconds": time.perf_counter() - started,
    }


def _seconds(name: str) -> float:
    """The seconds in which a step of 16 devices and 128 micro-batches is simulated; the second time, as compiling and
    what is kept of the schedule's graph come first.
    """
    stages = [StageTimes(1.0, 2.0, backward_weight_s=1.0)] * (16 * schedule_form(name).chunks)
    schedule = named_schedule(name, len(stages), 128)
    simulate(stages, 128, schedule)
    started = time.perf_counter()
    simulate(stages, 128, schedule)
    return time.perf_counter() - started


def _alike_table(rows: list[Row]) -> Table:
    columns = {
        "schedule": "{schedule}",
        "bubble off its formula": lambda row: f"{row['bubble_off']:.1e}" if "bubble_off" in row else "",
        "activations off theirs": lambda row: f"{row['kept_off']:.1e}" if "kept_off" in row else "",
        "bubble over 1F1B's, m = 4 p": "{share:.3f}",
    }
    return Table.of(rows, columns)


def _drawn_table(rows: list[Row]) -> Table:
    columns = {
        "devices": "{devices}",
        "chunks": "{chunks}",
        "micro-batches": "{micro_batches}",
        "best named over the bound": "{gap_before:.1%}",
        "improved over the bound": "{gap:.1%}",
        "shorter by": "{gain:.1%}",
    }
    return Table.of(rows, columns)


def _figures(alike: list[Row], drawn: list[Row], large: dict[str, float]) -> list[Figure]:
    exact = max(max(row["bubble_off"], row["kept_off"]) for row in alike if "bubble_off" in row)
    by_name = {row["schedule"]: row for row in alike}
    gains, gaps = [row["gain"] for row in drawn], [row["gap"] for row in drawn]
    better, slowest = sum(gain > GAIN for gain in gains), max(row["seconds"] for row in drawn)
    shares = {name: by_name[name]["share"] for name in ("v_half", "v_min")}
    room = max(by_name[name]["over"] for name in shares)
    return [
        Figure("alike", "off the formulas at most", "0", f"{exact:.1e}", exact < 1e-9),
        Figure("alike", "V-Half's bubble over 1F1B's", "at most 0.525", f"{shares['v_half']:.3f}",
               shares["v_half"] <= 0.5 * 1.05),
        Figure("alike", "V-Min's bubble over 1F1B's", "at most 0.700", f"{shares['v_min']:.3f}",
               shares["v_min"] <= 2 / 3 * 1.05),
        Figure("alike", "activations over (p+2)//2, (p+4)//3", "at most 0", f"{room:.1f}", room <= 0),
        Figure("alike", "16 devices, 128 micro-batches, slowest", f"under {units.seconds(FASTEST_S)}",
               units.seconds(max(large.values())), max(large.values()) < FASTEST_S),
        Figure("improver", "worse than the best named", "never", f"{sum(gain < 0 for gain in gains)}",
               all(gain >= 0 for gain in gains)),
        Figure("improver", f"shorter by over {GAIN:.0%}", f"at least {len(drawn) / 4:.1f} of {len(drawn)}",
               f"{better}", better >= len(drawn) / 4),
        Figure("improver", "over the bound, median", f"at most {GAP:.0%}", f"{statistics.median(gaps):.2%}",
               statistics.median(gaps) <= GAP),
        Figure("improver", "seconds, slowest", f"under {units.seconds(LONGEST_S)}",
               units.seconds(slowest), slowest < LONGEST_S),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
