"""Conformance suites: run any latency model, communication model, slicer or schedule, ours or your own, through them.

Each function raises AssertionError with what is wrong, and returns nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from alpa_dejavu.costs.communication import COLLECTIVES, CommunicationModel, Group
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.problem import Cluster, Device, Link, Objective, Operator, Operators, Sites, SlicingProblem
from alpa_dejavu.problem.slicing_problem import OBJECTIVES
from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation.step import SENDS, StageTimes, simulate
from alpa_dejavu.slicing import Exhaustive, Slicer
from alpa_dejavu.slicing.makespan import Makespan

__all__ = [
    "check_communication_model", "check_latency_model", "check_schedule", "check_slicer", "example_cluster",
    "random_problem",
]  # fmt: skip


def example_cluster(num_hosts: int = 2, devices_per_host: int = 4, memory_bytes: float = 2.0**30) -> Cluster:
    """Returns a made-up cluster of equal devices, whose links between hosts are ten times slower than those within
    hosts.
    """
    device = Device("example", memory_bytes, {"float32": 1e12}, 1e12, 1e11, kernel_s=1e-6, dispatch_s=1e-5)
    hosts = [f"host-{n}" for n in range(num_hosts)]
    return Cluster.uniform("example", hosts, device, devices_per_host, Link(1e-5, 1e10), Link(1e-4, 1e9))


def check_latency_model(model: LatencyModel) -> None:
    """Checks that a latency model keeps its contract: finite seconds above zero, no more for less work, loops counted
    by their trips, nothing for no operators.
    """
    device = example_cluster().hosts[0].device
    product = Operator("dot", "dot_general", ((64, 64), (64, 64)), ((64, 64),), "float32", 2.0 * 64**3, 0, 32768, 16384)
    add = Operator("elementwise", "add", ((64, 64),) * 2, ((64, 64),), "float32", 4096.0, 0, 32768, 16384)
    looped = Operator("elementwise", "add", ((64, 64),) * 2, ((64, 64),), "float32", 4096.0, 0, 32768, 16384, count=5)
    operators = Operators.of([product, add, looped])
    whole = model.predict(operators, device)
    assert whole.mean_s.shape == whole.spread_s.shape == (3,), "one mean and one spread for each operator"
    assert ((whole.mean_s > 0) & np.isfinite(whole.mean_s)).all(), f"means are {whole.mean_s}"
    assert ((whole.spread_s >= 0) & np.isfinite(whole.spread_s)).all(), f"spreads are {whole.spread_s}"
    assert math.isclose(whole.mean_s[2], 5 * whole.mean_s[1], rel_tol=1e-6), "an operator in a loop counts by its trips"
    half = model.predict(operators.split(2), device)
    assert (half.mean_s <= whole.mean_s).all(), "half of the work takes no longer"
    assert model.predict(Operators.of([]), device).total_s == 0.0, "no operators take no time"
    again = model.predict(operators, device)
    assert (again.mean_s == whole.mean_s).all(), "the same question gets the same answer"
    both, alone = model.predict(Operators.joined([operators.split(2), operators]), device), [half.mean_s, whole.mean_s]
    assert np.allclose(both.mean_s, np.concatenate(alone), rtol=1e-12, atol=0), "others in the same call change nothing"


def check_communication_model(model: CommunicationModel) -> None:
    """Checks that a communication model keeps its contract: finite seconds, no less for more bytes, none for no bytes
    or for a collective of one device.
    """
    cluster = example_cluster()
    sizes = np.array([[0.0, 1e3], [1e6, 1e9]])
    for collective in COLLECTIVES:
        for hosts in ((0,), (0, 0), (0, 1), (0, 0, 1, 1)):
            seconds = model.seconds(collective, sizes, Group(cluster, hosts))
            where = f"{collective} over hosts {hosts}: {seconds}"
            assert seconds.shape == sizes.shape, f"{where}: not in the shape of num_bytes"
            assert ((seconds >= 0) & np.isfinite(seconds)).all(), f"{where}: not finite, or negative"
            assert seconds[0, 0] == 0, f"{where}: no bytes take no time"
            assert (np.diff(seconds.ravel()) >= 0).all(), f"{where}: more bytes take less time"
            alone = [float(model.seconds(collective, size, Group(cluster, hosts))) for size in sizes.ravel()]
            assert np.allclose(alone, seconds.ravel(), rtol=1e-12, atol=0), f"{where}: alone they take {alone}"
            if len(hosts) == 1 and collective != "send":
                assert (seconds == 0).all(), f"{where}: one device has nobody to talk to"
    reduced = model.seconds("all_reduce", 1e9, Group(cluster, (0, 1)))
    assert reduced >= model.seconds("reduce_scatter", 1e9, Group(cluster, (0, 1))), "an all-reduce does more"


def random_problem(
    rng: np.random.Generator,
    num_layers: int = 4,
    num_devices: int = 4,
    num_configs: int = 2,
    limited: bool = True,
    num_kinds: int = 0,
) -> SlicingProblem:
    """Returns a slicing problem of random stage costs, some infinite, on submeshes of 1, 2, 4 ... devices, each with so
    many configs. If it is `limited`, memory limits how many stages may follow a stage, and stages have costs once a
    step. With kinds of hosts, submeshes are on one kind or two, and transfers between stages cost.
    """
    sites = _random_sites(rng, num_layers, num_devices, num_kinds) if num_kinds else None
    sizes = 2 ** np.arange(int(math.log2(num_devices)) + 1) if sites is None else sites.uses.sum(axis=1)
    shape = (num_layers, num_layers, len(sizes), num_configs)
    costs = rng.integers(1, 20, shape) / rng.integers(1, 5, shape)
    costs[rng.random(shape) < 0.15] = np.inf
    return SlicingProblem(
        costs_s=costs,
        submesh_sizes=sizes,
        num_devices=num_devices,
        num_micro_batches=int(rng.integers(1, 9)),
        max_n_succ_stages=rng.integers(-1, num_layers + 1, shape) if limited else None,
        per_step_s=rng.integers(0, 5, shape).astype(float) if limited else None,
        sites=sites,
    )


def _random_sites(rng: np.random.Generator, num_layers: int, num_devices: int, num_kinds: int) -> Sites:
    """Sites of 1, 2, 4 ... devices on one kind of hosts, and of one on each of two kinds."""
    available = np.bincount(rng.integers(0, num_kinds, num_devices), minlength=num_kinds)
    one_host = np.eye(num_kinds, dtype=np.int64)
    uses = [size * one_host[kind] for kind in range(num_kinds) for size in (1, 2, 4, 8) if size <= available[kind]]
    uses += [one_host[kind - 1] + one_host[kind] for kind in range(1, num_kinds)]
    num_links = int(rng.integers(1, 5))
    links = rng.integers(0, num_links, (num_kinds, num_kinds))
    home = np.argmax(uses, axis=1)
    # Links as the kinds have them, or any.
    links = links[np.ix_(home, home)] if rng.random() < 0.5 else rng.integers(0, num_links, (len(uses), len(uses)))
    return Sites(np.array(uses), available, links, rng.integers(0, 9, (num_layers, num_links)) / 2)


def check_slicer(slicer: Slicer, exact: bool = False, problems: int = 40, seed: int = 0) -> None:
    """Checks that a slicer keeps its contract on random problems: allowed slicings, true costs, sound bounds, the same
    answer again, and if `exact` the best one.

    The problems have hosts that are alike, or of up to three kinds; they ask for exactly or at most a number of
    devices, for any number of stages or a given one, and some for stages of one family; their objectives are those that
    have a name, and the simulated step (`alpa_dejavu.slicing.makespan.Makespan`). The slicer may refuse an objective
    other than "training" by a ValueError that names it.

    Raises:
        AssertionError: what is wrong, and with which problem.

    >>> from alpa_dejavu.problem import Slicing, StageChoice
    >>> class WholeModel(Slicer):
    ...     def slice(self, problem):
    ...         places = np.ndindex(problem.costs_s.shape[2:])
    ...         plans = [(StageChoice(0, problem.num_layers - 1, *place),) for place in places]
    ...         best = min(plans, key=problem.total_s)
    ...         return Slicing.of(problem, best if math.isfinite(problem.total_s(best)) else ())
    >>> check_slicer(WholeModel())
    >>> check_slicer(WholeModel(), exact=True)
    Traceback (most recent call last):
    ...
    AssertionError: problem 0: it costs ...
    """
    rng = np.random.default_rng(seed)
    for n in range(problems):
        problem = _posed(rng, n)
        costs_s, truth = np.array(problem.costs_s), Exhaustive().slice(problem)
        try:
            answer = slicer.slice(problem)
        except ValueError as error:
            if problem.objective != "training" and _named(problem.objective) in str(error):
                continue
            raise AssertionError(f"problem {n}: {error}") from error
        assert answer.found == math.isfinite(answer.cost_s), f"problem {n}: {answer.stages} at {answer.cost_s}"
        if answer.found:
            told = problem.total_s(answer.stages)
            same = math.isclose(told, answer.cost_s, rel_tol=1e-9)
            assert same, f"problem {n}: {answer.stages} cost {told}, not {answer.cost_s}"
        bound_s, least_s = answer.lower_bound_s, truth.cost_s
        assert bound_s <= least_s * (1 + 1e-9), f"problem {n}: the bound {bound_s} is over what can be had, {least_s}"
        if exact:
            same = answer.cost_s == least_s or math.isclose(answer.cost_s, least_s, rel_tol=1e-9)
            assert same, f"problem {n}: it costs {answer.cost_s}, but {least_s} can be had"
        assert (problem.costs_s == costs_s).all(), f"problem {n}: the problem itself was changed"
        assert slicer.slice(problem).stages == answer.stages, f"problem {n}: asked again, the answer is another"


def _posed(rng: np.random.Generator, n: int) -> SlicingProblem:
    """A small problem; by its number it has kinds of hosts, limits and an objective."""
    objective = (*OBJECTIVES, "training", "makespan")[n % 5]
    simulated = objective == "makespan"
    problem = random_problem(
        rng,
        num_layers=int(rng.integers(1, 4 if simulated else 5)),
        num_configs=1 if simulated else 2,
        limited=bool(n % 2),
        num_kinds=n // 2 % 4,
    )
    if simulated:
        schedule, sends = ("1f1b", "gpipe")[n // 5 % 2], SENDS[n // 10 % len(SENDS)]
        forward_s = problem.costs_s * rng.uniform(0.2, 0.5, problem.costs_s.shape)
        problem = dataclasses.replace(problem, objective=Makespan(forward_s, schedule, sends))
    else:
        problem = dataclasses.replace(problem, objective=objective)
    count = int(rng.integers(1, 4)) if n % 7 in (3, 5) else None
    shape = (1 + n % 3, *problem.costs_s.shape[2:])
    families = np.random.default_rng(n).random(shape) < 0.6 if n % 4 == 3 else None
    devices = "at most" if n % 3 == 0 else "exactly"
    return dataclasses.replace(problem, num_stages=count, devices=devices, families=families)


def _named(objective: str | Objective) -> str:
    return objective if isinstance(objective, str) else type(objective).__name__


def check_schedule(make: Callable[[int], Schedule], micro_batches: Sequence[int]) -> None:
    """Checks that a generator of schedules keeps its contract for several numbers of micro-batches: all tasks once and
    without deadlock, as `Schedule` itself checks; the micro-batches that were asked for; always on the same stages; and
    simulated with unlike stages and transfers, each task after what it needs, one at a time, in the memory that the
    order of tasks says.

    Raises:
        AssertionError: something is wrong; says what.
        ValueError: a task is missing or doubled, or tasks wait for each other; says which.
    """
    stages_of: set[tuple[int, ...]] = set()
    for size in micro_batches:
        schedule = make(size)
        assert isinstance(schedule, Schedule), f"it made no Schedule, but a {type(schedule).__name__}"
        assert schedule.num_micro_batches == size, (
            f"{size} micro-batches were asked for, but {schedule.name} has {schedule.num_micro_batches}"
        )
        stages_of.add(schedule.device_of)
        for sends in SENDS:
            _check_simulated(schedule, sends)
    assert len(stages_of) == 1, "the stages of each device don't depend on the number of micro-batches"


def _check_simulated(schedule: Schedule, sends: str) -> None:
    stages = [
        StageTimes(
            1.0 + n % 3, 2.0 + n % 2, forward_send_s=0.25, backward_send_s=0.25, backward_weight_s=1.0,
            activation_bytes=1.0,
        )
        for n in range(schedule.num_stages)
    ]  # fmt: skip
    run = simulate(stages, schedule.num_micro_batches, schedule, sends=sends)
    slack = 1e-9 * run.step_s
    assert (run.forward_s[1:, :, 0] >= run.forward_s[:-1, :, 1] - slack).all(), "a forward waits for the stage before"
    if schedule.trains:
        assert (run.backward_s[:-1, :, 0] >= run.backward_s[1:, :, 1] - slack).all(), (
            "a backward waits for the stage behind"
        )
        assert (run.backward_s[..., 0] >= run.forward_s[..., 1] - slack).all(), "a backward waits for its forward"
        late = np.isnan(run.weight_s[..., 0]) | (run.weight_s[..., 0] >= run.backward_s[..., 1] - slack)
        assert late.all(), "a backward by weights waits for that by inputs"
    for device, stages_here in enumerate(schedule.stages_on):
        spans = [span[n] for n in stages_here for span in (run.forward_s, run.backward_s, run.weight_s)]
        busy = np.concatenate(spans)
        busy = busy[~np.isnan(busy[:, 0])]
        busy = busy[np.argsort(busy[:, 0])]
        assert (busy[1:, 0] >= busy[:-1, 1] - slack).all(), f"device {device} does two tasks at once"
        kept = run.memory_over_time(device)[1].max()
        assert kept == schedule.peak_chunks[device], (
            f"device {device} keeps {kept} activations, but its order says {schedule.peak_chunks[device]}"
        )
