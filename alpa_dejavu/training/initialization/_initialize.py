"""Starts many, keeps the promising, and trains the best one on."""

from __future__ import annotations

import contextlib
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alpa_dejavu._util.json_file import check_folder
from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization._field import Field, RaceSetting
from alpa_dejavu.training.initialization._judge import Judge
from alpa_dejavu.training.initialization._judge import judge as judge_of
from alpa_dejavu.training.initialization._layout import RacedModel, gives_gradient
from alpa_dejavu.training.initialization._ray_workers import ray_workers
from alpa_dejavu.training.initialization._run import InitializationRun, Progress
from alpa_dejavu.training.initialization._store import StateStore
from alpa_dejavu.training.initialization._trainer import LocalRunner, Runner, Trainer
from alpa_dejavu.training.initialization.result_file import Initialized
from alpa_dejavu.training.initialization.rules import RaceRule, rule
from alpa_dejavu.training.initialization.starts import Start, start

if TYPE_CHECKING:
    from alpa_dejavu.training.initialization._layout import Batches, InitFn, Parameters, TrainStep

FEWEST_STEPS = 4
"""The fewest losses that a curve says anything by."""
RACE = 0.25
"""The fraction of the training in which candidates race, where compute isn't limited."""
EXTRA = 0.25
"""The steps that budget="small" allows besides the training itself, as a fraction of it."""
BUDGETS = ("full", "small")


def parallel_initialize(
    init_fn: InitFn,
    train_step: TrainStep,
    batches: Batches,
    *,
    num_candidates: int,
    budget_steps: int,
    init: str | Start | Sequence[str | Start] = "model",
    keep: str | RaceRule = "halving",
    judge: str | Judge = "trend",
    seed: int = 0,
    budget: str = "full",
    rungs: Sequence[int] | None = None,
    lanes: int = 4,
    workers: int | None = None,
    worker_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    memory_bytes: float | None = None,
    parameters: Parameters | None = None,
    checkpoints: str | pathlib.Path | None = None,
    checkpoint_steps: int = 100,
    save: str | pathlib.Path | None = None,
    keep_weights: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Initialized:
    """Trains a model from many initializations (candidates) a little, drops the poor ones early, and trains the best
    one to the end.

    All candidates see the same batch at the same step, and `jax.vmap` trains `lanes` of them side by side. Results are
    the same to the last bit for any number of workers of one kind with equally many threads each, and without workers
    there.

    Args:
        init_fn: gives a state for a key of `jax.random.PRNGKey`: the parameters, a flax `TrainState`, or any pytree of
            arrays. Candidate n's key is `fold_in(PRNGKey(seed), n)`.
        train_step: `(state, batch) -> (state, loss)`, or `-> (state, loss, gradient_norm)`, pure, for `jax.vmap`. The
            norm lets a judge look for large gradients.
        batches: a sequence, which begins again at its end, or a function of the step, counted from 0.
        budget_steps: the steps of the candidate that is chosen, those of the race between candidates included.
        init: the candidates' first weights: a name of `starts.KNOWN`, a `Start`, or several that race in turn. In
            docs/results/parallel-initialization.md "sobol" saves steps on all four networks, and several methods do on
            three; the others are experimental.
        keep: the rule by which candidates go on from a rung (step of judging): a name of `rules.KNOWN` or a `RaceRule`.
        judge: how candidates are ordered by their loss curves: "trend", "last_loss" or a `Judge`.
        budget: "small": all but the best candidate take a quarter of `budget_steps` together at most. "full": the race
            is in the first quarter of the steps, whatever that takes. Only a final that diverges costs more.
        rungs: the steps at which candidates are judged; None: `eta` times as far each, as the budget allows.
        lanes: how many candidates are trained side by side at most, on each worker; more go in waves.
        workers: how many actors of the connected Ray cluster do the work; None: this process does.
        worker_options: Ray's options of the actors, as `{"num_gpus": 1}`, or one mapping for each, as
            `into_alpa.spare_workers` gives them; a CPU each unless they say otherwise.
        memory_bytes: the memory of a device, which limits `lanes`; None: the least that jax says of workers' devices.
        parameters: a function that picks the parameters out of a state; None: what is in `.params` or `["params"]`,
            else the state.
        checkpoints: a folder for candidates' states; None: they are kept in this process's memory.
        checkpoint_steps: a state is kept at least every so many steps; if a worker dies, its candidates begin from it.
        save: a JSON file for the result, with an NPZ file beside it. Written at the end of the race, at the end, and
            with what was best so far when the run is interrupted or fails.
        keep_weights: whether curves keep the weights with which candidates began and ended.
        on_progress: a function that is called with the run's progress whenever candidates have trained on.

    Returns:
        the chosen state and the curves of all candidates.

    Raises:
        ValueError: something above isn't as it should be; nothing is trained then.
        TypeError: batches can't be read again, or what is given for workers can't be sent to them.
        RuntimeError: all candidates diverged, or there is no Ray, or no Optuna, where it is asked for.

    References:
        Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
    """
    begun_s = time.perf_counter()
    for name, value, least in (
        ("num_candidates", num_candidates, 1), ("budget_steps", budget_steps, 1), ("lanes", lanes, 1),
        ("checkpoint_steps", checkpoint_steps, 1), ("workers", 1 if workers is None else workers, 1), ("seed", seed, 0),
    ):  # fmt: skip
        if not isinstance(value, int) or value < least:
            raise ValueError(f"parallel_initialize: {name} is {value!r}, but must be a whole number of at least "
                             f"{least}")  # fmt: skip
    begin, go_on, order = start(init), rule(keep), judge_of(judge)
    at = race_rungs(rungs, num_candidates, budget_steps, go_on.eta, budget)
    model = RacedModel(init_fn, train_step, batches, parameters)
    trainer = Trainer(model)
    with_gradient = gives_gradient(model, trainer.layout)
    saved = None if save is None else pathlib.Path(save)
    if saved is not None:
        check_folder(saved)
    store = StateStore(trainer.layout, None if checkpoints is None else pathlib.Path(checkpoints))
    by_workers: contextlib.AbstractContextManager[Runner] = contextlib.nullcontext(LocalRunner(trainer, store))
    if workers is not None:
        by_workers = ray_workers(model, workers, {} if worker_options is None else worker_options, store)
    with by_workers as runner:
        if workers is not None:
            # Compiled here while workers begin; only then they can be asked for memory.
            trainer.start(seed, 0)
        fitting, note = runner.fitting(min(lanes, num_candidates), memory_bytes)
        setting = RaceSetting(
            num_candidates, budget_steps, at, extra_allowed(budget_steps, budget), begin, go_on, order, seed,
            fitting, checkpoint_steps, keep_weights,
        )  # fmt: skip
        field = Field(setting, trainer, store, with_gradient)
        run = InitializationRun(field, begun_s, saved, [note] if note else [])
        run.say_waves(workers or 1)
        if on_progress is not None:
            field.on_change = lambda: on_progress(run.progress())
        return run.result(runner)


def race_rungs(
    rungs: Sequence[int] | None, num_candidates: int, budget_steps: int, eta: int, budget: str
) -> tuple[int, ...]:
    """Returns the steps at which candidates are judged: the wanted ones, checked, else those that the budget gives."""
    checks.one_of("parallel_initialize", "budget", budget, BUDGETS)
    if rungs is None:
        return rungs_of(num_candidates, budget_steps, eta, budget)
    steps = tuple(rungs)
    ascend = all(a < b for a, b in itertools.pairwise(steps))
    if not steps or steps[0] < 1 or not ascend or steps[-1] > budget_steps:
        raise ValueError(f"rungs is {steps}, but must be ascending steps from 1 to budget_steps, {budget_steps}")
    extra, first = extra_allowed(budget_steps, budget), (num_candidates - 1) * steps[0]
    if first > extra:
        raise ValueError(
            f'budget="small" lets candidates take {extra:g} extra steps, but {num_candidates} of them take {first} to '
            f"the first rung, {steps[0]}; give an earlier rung"
        )
    return steps


def rungs_of(num_candidates: int, budget_steps: int, eta: int, budget: str) -> tuple[int, ...]:
    """Returns the rungs, the steps at which candidates are judged: each is about eta times the one before; at the
    last, one candidate is left. Budgets are as `parallel_initialize` has them.

    >>> rungs_of(8, 400, 2, "full")
    (25, 50, 100)
    >>> rungs_of(8, 400, 2, "small")
    (8, 16, 32)
    """
    if num_candidates == 1:
        return (budget_steps,)
    count = max(1, math.ceil(math.log(num_candidates) / math.log(eta) - 1e-9))
    if budget == "small":
        # What all but the best candidate take, where the first rung is one step.
        extra, before, alive = 0, 0, num_candidates
        for rung in (eta**n for n in range(count)):
            extra += (alive - 1) * (rung - before)
            before, alive = rung, -(-alive // eta)
        first = min(int(EXTRA * budget_steps / extra), budget_steps // eta ** (count - 1))
        if first < FEWEST_STEPS:
            raise ValueError(
                f'budget="small" lets candidates take {EXTRA * budget_steps:g} steps besides the {budget_steps} of the '
                f"training, too few to judge {num_candidates}; give {math.ceil(FEWEST_STEPS * extra / EXTRA)} "
                'budget_steps, fewer candidates, or budget="full"'
            )
    else:
        while count > 1 and RACE * budget_steps / eta ** (count - 1) < FEWEST_STEPS:
            count -= 1
        first = int(RACE * budget_steps / eta ** (count - 1))
        if first < FEWEST_STEPS:
            raise ValueError(
                f"budget_steps is {budget_steps}, but a race of candidates needs {math.ceil(FEWEST_STEPS / RACE)}"
                " at least; give more steps, or one candidate"
            )
    return tuple(first * eta**n for n in range(count))


def extra_allowed(budget_steps: int, budget: str) -> float:
    """Returns how many training steps a budget allows besides those of the candidate that is trained on."""
    return EXTRA * budget_steps if budget == "small" else math.inf
