"""How well small Krakens learn beside the standard transformer, and whether Alpa's parallel steps equal one device's.

Both parts compute in a process of their own, with one thread a device.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, final

import jax
import numpy as np
from tqdm import tqdm

from _kraken_models import Step, fresh, loss_of, name_of, parameters, sizes, step_of, text
from _measured_runs import ENVIRONMENT
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.alpa.local_cluster import local_cluster
from harness import Figure, Remote, Results, answer_all
from races._data import batch

ROWS = 8
"""Runs of characters in a batch."""
RATES = (1e-3, 3e-3, 1e-2)
"""Of learning; each kind has the one that suits it best with seed 0, by which nothing is judged."""
CONFIDENCE = 0.9
VALIDATED_EVERY = 4
"""One of so many runs of characters, from all files, is validated on."""
MESHES = ((1, (1, 4)), (4, (1, 4)), (4, (2, 2)))
"""Ways, and how many devices divide the batch, and the ways or a standard transformer's heads."""
PIPELINES = (1, 4)
"""Ways of those that are cut into two stages of two devices each."""
DEVICES, TOLERANCE = 4, 1e-4
"""The tolerance is relative: float32 sums in another order differ by some 1e-6 after a few steps."""
_PATIENCE_S = 60.0
_REDUCED = re.compile(r" = (.*?) all-reduce(?:-start)?\(")
_ARRAY = re.compile(r"\bf32\[([\d,]*)\]")
Row = dict[str, Any]


def quality(results: Results, seeds: int = 5, steps: int = 300) -> tuple[list[Row], list[Figure]]:
    """Trains each kind with so many seeds; rows by kind, and whether a Kraken's loss is within noise of the standard's.

    Seeds decide initial weights and batches, which are the same for all kinds. Trainings that the results have under
    "quality" aren't made again; they belong to a number of steps and to a text.

    Args:
        results: what is known already, and where each training is written.
        seeds: trainings of each kind, two at least.
        steps: of one training.
    """
    if seeds < 2:
        raise ValueError(f"seeds is {seeds}, but must be at least 2; differences of one seed have no interval")
    rows = []
    total = len(sizes()) * (len(RATES) + seeds)
    with Remote.started(_serve_training, name="trainer", patience_s=_PATIENCE_S) as trainer, tqdm(total=total) as bar:

        def loss(ways: int, rate: float, seed: int) -> float:
            name = f"{ways} ways, rate {rate:g}, seed {seed}, {steps} steps, text {text().mark}"
            row = results.known("quality", name, lambda: {"loss": trainer("loss", ways, rate, seed, steps)})
            bar.update()
            return float(row["loss"])

        for ways, size in sizes().items():
            bar.set_description(name_of(size))
            tried = {rate: loss(ways, rate, 0) for rate in RATES}
            rate = min(tried, key=lambda one: tried[one])
            losses = [loss(ways, rate, seed) for seed in range(1, seeds + 1)]
            rows.append({
                "model": name_of(size), "hidden": size.hidden, "parameters": parameters(size), "rate": rate,
                "tried": list(tried.values()), "losses": losses,
            })  # fmt: skip
    return _compared(rows), list(_quality_figures(rows))


def _compared(rows: list[Row]) -> list[Row]:
    """Adds means, perplexities and differences to the first row, the standard transformer's, seed by seed."""
    for row in rows:
        row["loss"] = float(np.mean(row["losses"]))
        row["perplexity"] = math.exp(row["loss"])
        found = Interval.of(np.subtract(row["losses"], rows[0]["losses"]).tolist(), CONFIDENCE)
        row["difference"], row["low"], row["high"] = found.mean, found.low, found.high
    return rows


def _quality_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows[1:]:
        share = row["difference"] / rows[0]["loss"]
        measured = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}), {share:+.2%}"
        what = f"validation loss per character over the standard's, {len(row['losses'])} seeds"
        aim = f"not surely higher: the {CONFIDENCE:.0%} interval begins at 0 or below"
        yield Figure(row["model"], what, aim, measured, row["low"] <= 0)


def parallel(results: Results, steps: int = 5) -> tuple[list[Row], list[Figure]]:
    """Trains a Kraken and the standard transformer by Alpa on four CPU devices, and on one.

    Alpa does so by `ShardParallel`, and by `PipeshardParallel` on a Ray cluster of this machine.

    Args:
        results: what is known already, under "parallel".
        steps: that are compared.
    """
    rows = []
    with Remote.started(_serve_parallel, name="alpa", patience_s=_PATIENCE_S) as alpa:
        for ways, mesh in tqdm(MESHES, "parallel"):
            name = f"{name_of(sizes()[ways])}, mesh {mesh}"
            compared = functools.partial(alpa, "compared", ways, mesh, steps)
            rows.append({"name": name, **results.known("parallel", f"{name}, {steps} steps", compared)})
        for ways in tqdm(PIPELINES, "pipelines"):
            name = f"{name_of(sizes()[ways])}, two stages"
            compared = functools.partial(alpa, "pipelined", ways, steps)
            rows.append({"name": name, **results.known("parallel", f"{name}, {steps} steps", compared)})
    return rows, list(_parallel_figures(rows))


def _parallel_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for row in rows:
        off = max(row["loss_off"], row["parameters_off"])
        what = f"losses and parameters after {row['steps']} steps on {DEVICES} devices, against one"
        yield Figure(row["name"], what, f"within {TOLERANCE:g}, relative", f"{off:.1e}", off <= TOLERANCE)
    standard, kraken = (row["all_reduced_bytes"] for row in rows[:2])
    told = f"{kraken / standard:.2f} times"
    yield Figure(rows[1]["name"], "bytes of a step's all-reduces", "fewer than the standard's", told, kraken < standard)


def _serve_training(connection: Connection) -> None:
    os.environ.update(ENVIRONMENT, JAX_PLATFORMS="cpu")
    answer_all(connection, _Trainer())


@final
class _Trainer:
    """What the process has that trains on one device."""

    def loss(self, ways: int, rate: float, seed: int, steps: int) -> float:
        """The loss on the validation text after a training whose rate rises for a tenth of it, then falls to zero."""
        step, validated = _compiled(ways)
        state, data = fresh(sizes()[ways], seed), text()
        for n in range(steps):
            now = rate * min(1.0, 10 * (n + 1) / steps) * (1 - n / steps)
            state, _ = step(state, batch(data, ROWS, seed, n), now)
        inputs, labels = (each[::VALIDATED_EVERY] for each in (data.test_inputs, data.test_labels))
        begins = range(0, len(inputs) - ROWS + 1, ROWS)
        return float(np.mean([validated(state[0], (inputs[n : n + ROWS], labels[n : n + ROWS])) for n in begins]))


@functools.cache
def _compiled(ways: int) -> tuple[Step, Callable[..., Any]]:
    size = sizes()[ways]
    return jax.jit(step_of(size, jax.value_and_grad), donate_argnums=0), jax.jit(loss_of(size))


def _serve_parallel(connection: Connection) -> None:
    flags = f"{ENVIRONMENT['XLA_FLAGS']} --xla_force_host_platform_device_count={DEVICES}"
    os.environ.update(ENVIRONMENT, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
    answer_all(connection, _Parallel())


@final
class _Parallel:
    """What the process has that trains by Alpa."""

    def compared(self, ways: int, mesh: tuple[int, int], steps: int) -> Row:
        """How far `ShardParallel` is from one device."""
        import alpa

        devices = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:DEVICES]).get_logical_mesh(mesh)
        sharding = alpa.AutoShardingOption(force_batch_dim_to_mesh_dim=0)
        return _compared_to_one(alpa.ShardParallel(devices=devices, auto_sharding_option=sharding), ways, steps)

    def pipelined(self, ways: int, steps: int) -> Row:
        """How far `PipeshardParallel` is from one device, in two stages and two micro-batches."""
        import alpa

        shape = [(1, DEVICES // 2)] * 2
        stages = alpa.ManualStageOption([[0], [1]], shape, shape, [{}] * 2)
        method = alpa.PipeshardParallel(
            num_micro_batches=2, layer_option=alpa.AutoLayerOption(layer_num=2), stage_option=stages
        )
        with local_cluster(DEVICES):
            alpa.init("ray")
            return _compared_to_one(method, ways, steps)


def _compared_to_one(method: Any, ways: int, steps: int) -> Row:
    """How far losses and parameters are from those of one device, relative to these, and the all-reduces it ran."""
    import alpa

    size = sizes()[ways]
    data = [batch(text(), ROWS, 0, n) for n in range(steps)]
    expected = _trained(jax.jit(step_of(size, jax.value_and_grad)), ways, data)
    ours = step_of(size, alpa.value_and_grad)
    step = alpa.parallelize(ours, method=method, donate_argnums=(), batch_argnums=(1,))
    found = _trained(step, ways, data)
    loss_off, parameters_off = (
        max(jax.tree.leaves(jax.tree.map(_relative, *each))) for each in zip(found, expected, strict=True)
    )
    modules = step.get_last_executable().get_hlo_text()
    reduced = all_reduced(modules if isinstance(modules, str) else "\n".join(modules))
    return {"steps": steps, "loss_off": loss_off, "parameters_off": parameters_off, **reduced}


def _trained(step: Step, ways: int, data: Sequence[Any]) -> tuple[list[float], Any]:
    """The losses, and the parameters after all batches."""
    state, losses = fresh(sizes()[ways], 0), []
    for one in data:
        state, loss = step(state, one, np.float32(RATES[1]))
        losses.append(float(np.asarray(loss)))
    return losses, jax.tree.map(np.asarray, state[0])


def _relative(found: Any, expected: Any) -> float:
    """The norm of the difference over the norm of what is expected."""
    return float(np.linalg.norm(np.subtract(found, expected, dtype=np.float64)) / np.linalg.norm(expected))


def all_reduced(module: str) -> Row:
    """The all-reduces of a module of HLO, and their bytes of float32."""
    entries = _REDUCED.findall(module)
    arrays = [tuple(map(int, filter(None, dims.split(",")))) for one in entries for dims in _ARRAY.findall(one)]
    return {"all_reduces": len(entries), "all_reduced_bytes": 4 * sum(math.prod(one) for one in arrays)}
