"""Drawn models on one device and under Alpa, side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import signal
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import alpa
import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves, tree_structure

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.layer_option import DejavuLayerOption
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.problem import NoPlanError
from drawn_models import DrawnModel, drawn_depth, drawn_model
from step_zoo import STEPS
from training_jobs import JOBS, fresh_parameters, make_step, optimizer

__all__ = ["NAMES", "Configuration", "Outcome", "configurations", "model_of", "outcome", "outcomes"]

NAMES = (*JOBS, *STEPS)
"""Of steps that aren't drawn."""
_REASONS = {
    "more layers or stages than its products make": r"can't be cut into \d+ layers",
    "a number that can't be put together from micro-batches": r"isn't known from \d+ micro-batches",
}
"""Why steps are refused, or warned of, by what is said."""
_TOLERANCE, _LOW_TOLERANCE = 2e-3, 0.2
"""Of the norm of a value's change: in float32, and of 16 bits, whose rounding depends on how XLA fuses operations."""
_LIMIT_S = 300


@dataclasses.dataclass(frozen=True)
class Configuration:
    """How a step is run under Alpa.

    Attributes:
        micro_batches: of a batch.
        stages: of the pipeline; 0: it is sharded in one mesh.
        layers: into which it is cut for the pipeline.
        devices: of the mesh, or of each stage's.
        remat: "none", "layers" for all, or "some" for the first one.
        schedule: of the pipeline.
    """

    micro_batches: int
    stages: int = 0
    layers: int = 0
    devices: int = 2
    remat: str = "none"
    schedule: str = "1f1b"

    @property
    def name(self) -> str:
        """What it is called in tables."""
        if not self.stages:
            return f"{self.devices} devices, {self.micro_batches} micro-batches"
        more = "" if self.remat == "none" else f", remat of {self.remat}"
        more += "" if self.schedule == "1f1b" else f", {self.schedule}"
        return (
            f"{self.layers} layers in {self.stages} stages of {self.devices}, {self.micro_batches} micro-batches{more}"
        )


def configurations(seed: int | str) -> list[Configuration]:
    """Draws a mesh and a pipeline for a model; few pipelines have more stages than it has layers.

    Steps that have names aren't drawn, and have all the same.
    """
    if isinstance(seed, str):
        return [Configuration(2, devices=4), Configuration(2, 2, 2, 2, remat="some"), Configuration(4, 2, 2, 1)]
    rng, depth = np.random.default_rng((seed, 1)), drawn_depth(seed)

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    mesh = Configuration(one_of(1, 2, 4), devices=one_of(2, 4))
    stages = min(one_of(1, 2, 2, 2, 3, 4), depth + one_of(0, 0, 0, 1))
    layers = max(stages, min(stages + one_of(0, 0, 1), depth))
    remat, schedule = one_of("none", "none", "layers", "some"), one_of(*["1f1b"] * 3, "gpipe", "1f1b_overlap_friendly")
    devices = one_of(1, 2) if stages < 3 else 1
    return [mesh, Configuration(one_of(1, 2, 2, 4), stages, layers, devices, remat, schedule)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a model under a configuration.

    Attributes:
        verdict: "equal"; "warned": a warning said which number isn't the batch's own; "refused": an error of one line
            said what to do; or "wrong".
        said: the warning, the refusal, or what is wrong.
        reason: of "warned" and "refused", in short.
        where: the end of the traceback of an error.
    """

    verdict: str
    said: str = ""
    reason: str = ""
    where: str = ""


def model_of(seed: int | str) -> DrawnModel:
    """A drawn model, or a job of `training_jobs` or a step of `step_zoo` by its name."""
    if isinstance(seed, int):
        return drawn_model(seed)
    if seed in STEPS:
        state, batch = STEPS[seed].arguments

        def make_once(api: Any, micro_batches: int = 1) -> Any:
            step = STEPS[seed].make(api.value_and_grad)
            return lambda state, batch: ((), step(state, batch))

        return DrawnModel(seed, (), make_once, state, (batch,), None, False)
    job = JOBS[seed]()

    def make(api: Any, micro_batches: int = 1) -> Any:
        train = make_step(job, api.value_and_grad)

        def step(state: Any, batch: Any) -> Any:
            params, momentum, loss = train(*state, batch)
            return (params, momentum), loss

        return step

    params = fresh_parameters(job)
    return DrawnModel(seed, (), make, (params, _arrays(optimizer().init(params))), job.batches[:2], None, False)


def outcome(model: DrawnModel, configuration: Configuration) -> Outcome:
    """Runs a model's steps under Alpa, and compares all that they give with one device's."""
    with _warnings() as warned:
        try:
            with _limited():
                actual = _parallel(model, configuration)
        except Exception as error:
            said, where = str(error), "".join(traceback.format_exception(error)[-4:])
            clear = isinstance(error, (ValueError, NotImplementedError, NoPlanError)) and "\n" not in said
            reason = _reason(said) if clear else ""
            return Outcome("refused" if reason else "wrong", f"{type(error).__name__}: {said}"[:600], reason, where)
    apart = _difference(model, actual, configuration.micro_batches)
    if warned:
        return Outcome("warned", warned[0], _reason(warned[0]))
    return Outcome("wrong", apart) if apart else Outcome("equal")


def outcomes(
    pairs: Iterable[tuple[int | str, Configuration]],
) -> Iterator[tuple[tuple[int | str, Configuration], tuple[str, ...], Outcome]]:
    """Runs models, by seeds or names, on local clusters, each of which serves until a run ends with an error of Alpa's.

    Yields:
        The pair, the model's features, and what became of it.
    """
    waiting = deque(pairs)
    while waiting:
        with local_cluster(devices=4):
            while waiting:
                pair = waiting.popleft()
                model = model_of(pair[0])
                made = outcome(model, pair[1])
                yield pair, model.features, made
                if made.verdict == "wrong" and made.where:
                    break


def _reason(said: str) -> str:
    return next((reason for reason, pattern in _REASONS.items() if re.search(pattern, said)), "")


def _parallel(model: DrawnModel, configuration: Configuration) -> Any:
    step = alpa.parallelize(
        model.make(alpa), method=_method(configuration), donate_argnums=(), batch_argnums=(1,)
    )  # fmt: skip
    if not configuration.stages:
        return _run(model, step)
    # Connected anew for each: a virtual mesh keeps the submeshes of the first plan that ran on it.
    alpa.init("ray", num_nodes=1, num_devices_per_node=configuration.stages * configuration.devices)
    try:
        return _run(model, step)
    finally:
        alpa.shutdown()


def _method(configuration: Configuration) -> Any:
    if not configuration.stages:
        devices = jax.local_devices()[: configuration.devices]
        return alpa.ShardParallel(devices=devices, num_micro_batches=configuration.micro_batches)
    layers: Any = DejavuLayerOption(configuration.layers, (0,) if configuration.remat == "some" else ())
    if configuration.remat == "layers":
        layers = DejavuLayerOption(configuration.layers, range(configuration.layers))
    stages = DejavuStageOption(
        submesh_physical_shape_space="manual", manually_specified_submeshes=[(1, configuration.devices)],
        profile="never",
    )  # fmt: skip
    return alpa.PipeshardParallel(
        num_micro_batches=configuration.micro_batches, layer_option=layers, stage_option=stages,
        pipeline_schedule=configuration.schedule,
    )  # fmt: skip


def _run(model: DrawnModel, step: Any) -> list[Any]:
    """What all steps give, the last one's state first."""
    state, said = model.state, []
    for number, batch in enumerate(model.batches):
        state, results = step(state, batch, *([model.keys[number]] if model.keys else []))
        said.append(results)
    return _arrays([state, *said])


def _arrays(tree: Any) -> Any:
    return jax.tree_util.tree_map(np.asarray, tree)


@functools.lru_cache(maxsize=8)
def _expected(model: DrawnModel, micro_batches: int, low: bool) -> Any:
    named = {} if low or not model.low else {"dtype": np.float32}
    return _run(model, jax.jit(model.make(jax, micro_batches, **named)))


def _difference(model: DrawnModel, actual: Any, micro_batches: int) -> str:
    """The results that aren't one device's, to rounding; the state by how it has changed."""
    parts = micro_batches if model.keys else 1
    expected = _expected(model, parts, True)
    exact = tree_leaves(_expected(model, parts, False)) if model.low else tree_leaves(expected)
    first = tree_leaves(model.state) if tree_structure(expected[0]) == tree_structure(model.state) else []
    first += [None] * (len(exact) - len(first))
    apart = []
    paths = tree_flatten_with_path(expected)[0]
    for (path, e), a, x, f in zip(paths, tree_leaves(actual), exact, first, strict=True):
        if a.shape != e.shape or a.dtype != e.dtype:
            apart.append(f"{keystr(path)} is {a.dtype}{a.shape} in place of {e.dtype}{e.shape}")
            continue
        wide = [np.asarray(v, np.float64) for v in (a, e, x)]
        change = wide[1] if f is None else wide[1] - np.asarray(f, np.float64)
        rounding = 3 * np.linalg.norm(wide[1] - wide[2]) + 1e-6 * np.linalg.norm(wide[1]) + 1e-7
        allowed = rounding + (_LOW_TOLERANCE if model.low else _TOLERANCE) * np.linalg.norm(change)
        found = np.linalg.norm(wide[0] - wide[1])
        if not found <= allowed:
            apart.append(f"{keystr(path)} is {found:.3g} apart, of {np.linalg.norm(change):.3g}")
    return "; ".join(apart[:4])


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Lists what is said not to be known of a step over micro-batches."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("alpa_stock_jax._micro_batch_results")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Ends what waits for ever."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"not done after {_LIMIT_S} s")

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(_LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
