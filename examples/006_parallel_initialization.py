"""Starts a network many times at once, keeps the promising starts, and trains the best one on.

Each worker tries a start of its own on scikit-learn's handwritten digits; workers are Ray actors on this machine, or
with --no-ray lanes of one program. Smaller numbers of workers are run, too, to see what more of them are good for.
Everything is repeatable: the same seed gives the same curves with Ray and without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tqdm import tqdm

from alpa_dejavu._util.json_file import check_folder, write_whole
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.initialization import Initialized, Progress, parallel_initialize
from alpa_dejavu.training.initialization.rules import KNOWN as RULES
from alpa_dejavu.training.initialization.starts import KNOWN as STARTS
from digits.model import Digits, digits, init_and_step
from digits.plots import plots_page, smoothed, steps_to

DEMO_IMAGES = 500


def main() -> None:
    """Trains, prints what came out, and writes it where that is asked for."""
    arguments = _arguments()
    data = digits(DEMO_IMAGES if arguments.to_demo else None)
    epochs = arguments.demo_epochs if arguments.to_demo else arguments.epochs
    counts = sorted({1, *(2**n for n in range(arguments.num_workers.bit_length()) if 2**n < arguments.num_workers)})
    runs = {count: _run(data, epochs, count, arguments) for count in counts}
    context = contextlib.nullcontext() if arguments.no_ray else local_cluster(devices=arguments.num_workers)
    with context:
        runs[arguments.num_workers] = _run(data, epochs, arguments.num_workers, arguments, not arguments.no_ray)
    target = float(smoothed(runs[1].losses)[-1])
    steps = {count: steps_to(result.losses, target) for count, result in runs.items()}
    _say(data, runs, steps, target)
    if arguments.html is not None:
        write_whole(arguments.html, plots_page(runs[arguments.num_workers], steps))
        print(f"Wrote {arguments.html}")
    if arguments.json is not None:
        content = {"target_loss": target, "runs": [_as_json(data, n, runs[n], steps[n]) for n in sorted(runs)]}
        write_whole(arguments.json, json.dumps(content, indent=1) + "\n")
        print(f"Wrote {arguments.json}")


def _run(data: Digits, epochs: int, count: int, arguments: argparse.Namespace, on_ray: bool = False) -> Initialized:
    """One run with so many starts; in this process, unless it is on Ray."""
    batches = data.batches(epochs, arguments.seed)
    init_fn, train_step = init_and_step()
    where = "on Ray" if on_ray else "in this process"
    with tqdm(total=len(batches), desc=f"Starts: {count}, {where}", unit="step", disable=None) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.step - bar.n)
            bar.set_postfix(living=progress.living, all_steps=progress.total_steps)

        return parallel_initialize(
            init_fn, train_step, batches, num_candidates=count, budget_steps=len(batches), init=arguments.init,
            keep=arguments.keep, budget=arguments.budget, seed=arguments.seed, lanes=1, checkpoint_steps=10,
            workers=count if on_ray else None, keep_weights=True, on_progress=show,
        )  # fmt: skip


def _say(data: Digits, runs: dict[int, Initialized], steps: dict[int, int | None], target: float) -> None:
    print(f"Target: a training loss of {target:.4f}, which one start has after its {runs[1].steps} steps")
    for count in sorted(runs):
        result, reached = runs[count], steps[count]
        print(
            f"{count:3d} worker{'s' if count > 1 else ' '}: target after {reached if reached else 'no'} steps, loss at "
            f"the end {smoothed(result.losses)[-1]:.4f}, test accuracy {data.accuracy(result.state.params):.3f}, "
            f"{result.total_steps} steps of all candidates, {result.seconds:.1f} s"
        )
    last = runs[max(runs)]
    for curve in last.curves:
        print(f"    candidate {curve.number}: {len(curve.losses)} steps; {curve.why}")
    for note in last.notes:
        print(f"    {note}")


def _as_json(data: Digits, count: int, result: Initialized, reached: int | None) -> dict[str, Any]:
    return {
        "workers": count,
        "steps_to_target": reached,
        "loss": float(smoothed(result.losses)[-1]),
        "test_accuracy": data.accuracy(result.state.params),
        "total_steps": result.total_steps,
        "seconds": result.seconds,
        "candidates": [
            {"number": each.number, "dropped_step": each.dropped_step, "why": each.why, "losses": each.losses.tolist()}
            for each in result.curves
        ],
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", "--num_workers", type=_count, default=4, help="starts (default: %(default)s)")
    parser.add_argument("--epochs", type=_count, default=10, help="(default: %(default)s)")
    parser.add_argument("--demo-epochs", "--demo_epochs", type=_count, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--to-demo", "--to_demo", type=_truth, nargs="?", const=True, default=False, metavar="True|False",
        help=f"{DEMO_IMAGES} images and the demo's epochs alone",
    )  # fmt: skip
    parser.add_argument(
        "--init", choices=sorted(STARTS), nargs="+", default=["model"], metavar="START",
        help=f"where to start; several race against each other: {', '.join(sorted(STARTS))} (default: model)",
    )  # fmt: skip
    parser.add_argument("--keep", choices=sorted(RULES), default="halving", help="whom to keep (default: %(default)s)")
    parser.add_argument("--budget", choices=["full", "small"], default="full", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--no-ray", "--no_ray", action="store_true", help="all in this process")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what came out")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write a page of plots")
    arguments = parser.parse_args()
    for option, path in (("--json", arguments.json), ("--html", arguments.html)):
        if path is not None:
            _check_path(parser, option, path)
    return arguments


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(text)


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text} is neither True nor False")
    return known[text.lower()]


def _check_path(parser: argparse.ArgumentParser, option: str, path: Path) -> None:
    """Refuses what can't be written before anything is trained."""
    try:
        check_folder(path)
    except ValueError as error:
        parser.error(f"{option} {error}")
    if path.is_dir():
        parser.error(f"{option} {path} can't be written: it is a folder; name a file in it")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    start_s = time.perf_counter()
    main()
    print(f"Done in {time.perf_counter() - start_s:.0f} s")
