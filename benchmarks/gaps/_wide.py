"""A search much wider than the default one: all numbers of micro-batches, layers, stages and hosts, none scaled."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, final
from unittest.mock import patch

from alpa_dejavu.planning import PlanningTask
from alpa_dejavu.planning._bench import Bench
from alpa_dejavu.planning._candidate import Candidate, best_first, host_names
from alpa_dejavu.planning._clock import Clock
from alpa_dejavu.planning._given import on_used_hosts
from alpa_dejavu.planning._parts import fewer_hosts
from alpa_dejavu.planning._polish import polished
from alpa_dejavu.planning._shapes import Shape
from alpa_dejavu.planning.task import Chooser, Found
from alpa_dejavu.problem import NoPlanError
from alpa_dejavu.slicing import Dynamic

LAYERS = (8, 12, 16, 24, 32, 48)
_FAR = 1.1
"""More, or fewer, stages aren't tried where the closed form of a step is so many times the best step."""
_HOPELESS = 1.2
"""A number of micro-batches is left out where it takes so many times the best step with the middle number of layers."""
_CLOSE = 1.05
"""Of fewer hosts all shapes are tried where those of the middle number of layers come so close to the best step."""
_PLACED = 6


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what the default slicer is asked meanwhile, as "slicings"; problems are not kept, they are large."""
    whole, asked = Dynamic.slice, Counter[str]()

    def counting(*given: Any) -> Any:
        asked["slicings"] += 1
        return whole(*given)

    with patch.object(Dynamic, "slice", counting):
        yield asked


@final
@dataclasses.dataclass(frozen=True)
class Wide(Chooser):
    """The wide search.

    Attributes:
        known_s: the step of a plan that is known, which bounds what is looked at.
        layers: numbers of layers, or the nearest lower ones that the model can be cut into.
    """

    known_s: float
    layers: tuple[int, ...] = LAYERS

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        """The plans that it found, the shortest step first."""
        numbers = task.source.numbers_of_layers(self.layers)
        bench = Bench(task, clock)
        found = list(_all_shapes(bench, numbers, self.known_s))
        for part in fewer_hosts(task.cluster):
            best_s = min([self.known_s, *(one.step_s for one in found)])
            # No plan's devices work less than this, whatever the schedule hides.
            if bench.least_work_s / part.num_devices > best_s:
                continue
            smaller = Bench(task.on(part), clock, bench.known)
            middle = list(_all_shapes(smaller, numbers[len(numbers) // 2 :][:1], best_s))
            close = min((one.step_s for one in middle), default=math.inf) <= _CLOSE * best_s
            found += _all_shapes(smaller, numbers, best_s) if close else middle
        if not found:
            raise NoPlanError("nothing that a wide search looks at comes close to the default plan")
        best = best_first(found)[:_PLACED]
        return Found(best_first(_placed(task, polished(one)) for one in best))

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> None:
        """Nothing is chosen on another cluster."""


def _all_shapes(bench: Bench, numbers: Sequence[int], best_s: float) -> Iterator[Candidate]:
    """The plans of all shapes on a bench's cluster that come close, each traced at its own micro-batch."""
    middle = numbers[len(numbers) // 2]
    for count in reversed(bench.task.micro_batches):
        for number in sorted(numbers, key=lambda n: n != middle):
            bench.costs(number, count, exactly=True)
            found = list(_numbers_of_stages(bench, number, count, best_s))
            yield from found
            least_s = min((one.step_s for one in found), default=math.inf)
            if number == middle and found and least_s > _HOPELESS * best_s:
                break
            best_s = min(best_s, least_s)


def _numbers_of_stages(bench: Bench, number: int, count: int, best_s: float) -> Iterator[Candidate]:
    """The best plans of a number of layers and micro-batches: of any number of stages, and of each, up and down."""
    free = bench.candidate(Shape(number, count))
    if free is None:
        return
    yield free
    first, most = len(free.stages), min(number, bench.task.cluster.num_devices)
    for stages in itertools.chain([range(first, most + 1), range(first - 1, 0, -1)]):
        for one in (bench.candidate(Shape(number, count, n)) for n in stages):
            if one is None:
                continue
            yield one
            best_s = min(best_s, one.step_s)
            if one.slicing.cost_s > _FAR * best_s:
                break


def _placed(task: PlanningTask, one: Candidate) -> Candidate:
    """The candidate on its very hosts, as the default search prices its plans."""
    used = {host for hosts in one.placed for host in hosts}
    whole = len(used) == len(one.cluster.hosts) and one.space.hosts is None
    return one if whole else on_used_hosts(task, one, host_names(one))
