"""Trains a GPT on four CPU devices with the plan of DejavuStageOption: `make demo` runs this.

Starts a Ray cluster by itself and stops it again. With --compare the same job is also planned by Alpa's own
AutoStageOption, which compiles and profiles its candidates (minutes), and trained with that plan, in turns.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import alpa
from tqdm import tqdm

from alpa_dejavu import DejavuStageOption, plan_table
from alpa_dejavu.alpa.local_cluster import local_cluster
from demo.peer import paired_rounds, peer
from demo.report import describe, plan_as_json
from demo.session import Session
from demo.text import batches, standard_library, unigram_entropy
from demo.training import Job, create_state, largest_relative_difference, train_on_one_device

CHECKED_STEPS = 5
TOLERANCE = 1e-4
ROUNDS, STEPS_PER_ROUND = 20, 5


def main() -> None:
    """Trains, prints and writes what came out; an error if parallel training isn't what one device computes."""
    arguments = _arguments()
    job = Job(steps=arguments.steps)
    text = standard_library()
    entropy = unigram_entropy(text)
    print(f"Text: {text.size / 1e6:.1f} MB of Python's standard library; entropy of single bytes: {entropy:.3f} nats")
    with local_cluster(devices=job.devices):
        alpa.init("ray")
        option = DejavuStageOption()
        session = Session(job, option)
        print("Planning and compiling ...")
        session.compile()
        assert option.last_plan is not None, "the session has compiled"
        print(plan_table(option.last_plan))
        print(f"Planned in {session.planning_s:.2f} s; planned and compiled in {session.compile_s:.1f} s")
        difference = _train(session)
        result: dict[str, Any] = {
            "plan": plan_as_json(option.last_plan),
            "planning_s": session.planning_s,
            "compile_s": session.compile_s,
            "predicted_step_s": option.last_plan.step_s,
            "measured_step_s": session.step_s[: job.steps],
            "losses": session.losses[: job.steps],
            "unigram_entropy": entropy,
            "max_relative_parameter_difference": difference[0],
            "max_loss_difference": difference[1],
        }
        if arguments.compare:
            result["compare"] = _compare(session)
    print(describe(result, TOLERANCE, CHECKED_STEPS))
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {arguments.json}")
    if difference[0] > TOLERANCE:
        raise SystemExit(f"parameters differ from single-device training by {difference[0]:.1e}, over {TOLERANCE:.0e}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=Job.steps, help="training steps (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("demo.json"), help="for the results (default: %(default)s)")
    parser.add_argument("--compare", action="store_true", help="also plan with AutoStageOption, and train with both")
    arguments = parser.parse_args()
    if arguments.steps < CHECKED_STEPS:
        parser.error(f"--steps is {arguments.steps}; at least {CHECKED_STEPS} are compared with single-device training")
    return arguments


def _train(session: Session) -> tuple[float, float]:
    """All steps; the largest relative differences of parameters and losses to one device's after the first few."""
    job = session.job
    data = batches(standard_library(), job.batch_size, job.config.length, job.seed)
    expected, expected_losses = train_on_one_device(create_state(job), [next(data) for _ in range(CHECKED_STEPS)])
    difference = (0.0, 0.0)
    progress = tqdm(range(job.steps), desc="Training", unit="step", disable=None)
    for number in progress:
        progress.set_postfix(loss=f"{session.step():.3f}", refresh=False)
        if number + 1 == CHECKED_STEPS:
            losses = max(abs(a - b) / b for a, b in zip(session.losses, expected_losses, strict=True))
            difference = (largest_relative_difference(session.parameters(), expected), losses)
    return difference


def _compare(session: Session) -> dict[str, Any]:
    """The same job with AutoStageOption's plan, the two training in turns."""
    print("Planning the same job with AutoStageOption, which compiles and profiles: this takes minutes ...")
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    with peer(session.job) as other:
        answer = other.answer()
        for number in tqdm(range(ROUNDS), desc="Training in turns", unit="round", disable=None):
            turns = [(ours, lambda: _steps(session)), (theirs, lambda: other.ask(STEPS_PER_ROUND))]
            for record, turn in turns if number % 2 else reversed(turns):
                record.append(turn())
    our_steps, their_steps = ([seconds for turn in turns for seconds in turn] for turns in (ours, theirs))
    return {
        "dejavu": {"planning_s": session.planning_s, "measured_step_s": our_steps},
        "auto": {**answer, "measured_step_s": their_steps},
        "planning_ratio": answer["planning_s"] / session.planning_s,
        "step_ratio": paired_rounds(ours, theirs),
        "median_step_s": [statistics.median(our_steps), statistics.median(their_steps)],
    }


def _steps(session: Session) -> list[float]:
    for _ in range(STEPS_PER_ROUND):
        session.step()
    return session.step_s[-STEPS_PER_ROUND:]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
