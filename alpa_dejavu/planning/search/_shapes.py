"""The search over shapes: numbers of layers, micro-batches and stages, asked for one by one and told what they take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import final

from alpa_dejavu._util.ties import TOLERANCE, ordered
from alpa_dejavu.problem import Cluster
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES

_GAIN, _IDLE = 0.008, 2
"""More layers are tried until so many numbers of them in a row gain less than this share of a step: each has to be cut
and divided."""
_COUNTS, _REFINED = 3, 2
"""So many of the best numbers of micro-batches are tried with more layers, and so many of the best shapes with other
numbers of stages."""
_CLOSE = 1.1
"""Numbers of micro-batches that take more than so many times the best one's step aren't tried with more layers, nor
shapes that take so many times a rival's with other numbers of stages."""
_HOPELESS, _PATIENCE = 1.25, 2
"""Fewer micro-batches aren't tried any more after so many numbers of them in a row that take so many times the best."""


def micro_batch_counts(batch: int, cluster: Cluster | None = None, at_most: int = 20) -> tuple[int, ...]:
    """Returns the numbers of micro-batches worth trying for a batch: those of a power of two samples each, or so many
    times the odd factor of a host's number of devices, among which these can be divided; and the whole batch.

    >>> micro_batch_counts(24)
    (1, 3, 6, 12, 24)
    >>> from alpa_dejavu.testing import example_cluster
    >>> micro_batch_counts(24, example_cluster(2, 6))
    (1, 2, 3, 4, 6, 8, 12, 24)
    """
    devices = {1, *(host.num_devices for host in cluster.hosts)} if cluster is not None else {1}
    sizes = {(number // (number & -number)) << n for number in devices for n in range(batch.bit_length())}
    counts = {batch // size for size in sizes if batch % size == 0}
    few = (count for count in counts if count <= MOST_MICRO_BATCHES)
    return tuple(sorted({1, *sorted(few, reverse=True)[:at_most]}))


@final
@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    """The shape of a plan: its numbers of layers, of micro-batches, and of stages (0: any number)."""

    layers: int
    micro_batches: int
    stages: int = 0


@final
class ShapeSearch:
    """A search over shapes of plans (numbers of layers, micro-batches and stages) that chooses the next shape to try by
    the step times of those before.

    The numbers of micro-batches are tried with the fewest layers; then the best of them, and the best shape's number of
    stages, with more layers, as long as those gain; then other numbers of stages with the best of all. Of `halved`
    devices, of which there are a power of two, multiples of the fewest layers are tried first, and others only if those
    gain: they would be of use for stages by threes. A search that begins at a known good shape goes from there to
    neighbouring numbers of micro-batches as long as steps get shorter. A thorough one tries all numbers of layers and
    micro-batches, and all of stages with the best shapes. Other numbers of stages aren't tried with shapes far from
    `rival_s`, a step that is known elsewhere.

    >>> search = ShapeSearch([4], [1, 2])
    >>> while (shape := search.ask()) is not None:
    ...     search.tell(shape, step_s=1 / shape.micro_batches, num_stages=2)
    >>> sorted(search.told)[0]
    Shape(layers=4, micro_batches=1, stages=0)
    """

    def __init__(
        self,
        layers: Sequence[int],
        micro_batches: Sequence[int],
        begin: Shape | None = None,
        thorough: bool = False,
        rival_s: float = math.inf,
        halved: bool = False,
    ) -> None:
        self.told: dict[Shape, float] = {}
        few, *more = layers
        self._layers = (few, *sorted(more, key=lambda number: (halved and number % few > 0, number)))
        self._counts, self._idle = tuple(micro_batches), 1 if halved else _IDLE
        self._stages: dict[Shape, int] = {}
        self._thorough, self._rival_s, self._begin = thorough, rival_s, begin
        self._asked = self._shapes(begin)

    def ask(self) -> Shape | None:
        """Returns the numbers of layers, micro-batches and stages to try next; None once enough were tried."""
        return next((shape for shape in self._asked if shape not in self.told), None)

    def tell(self, shape: Shape, step_s: float, num_stages: int) -> None:
        """Tells the search the step of a shape's best plan (infinite: nothing fits), and its number of stages."""
        self.told[shape], self._stages[shape] = step_s, num_stages

    @property
    def left(self) -> tuple[int, int]:
        """Returns about how many shapes are left: at numbers of layers that were asked for, and one for each other."""
        few, more = self._layers[0], min(len(self._layers) - 1, self._idle)
        asked = [shape for shape in self.told if not shape.stages]
        first = [shape for shape in asked if shape.layers == few]
        widely = len(self._counts) if self._thorough else len(self._counts) // 2 + 1
        if self._begin is not None:
            return max(min(_COUNTS, len(self._counts)) - len(asked), 0), 0
        begun = len({shape.layers for shape in asked}) - 1
        if begun <= 0:
            return max(widely - len(first), 1) + more * (min(_IDLE, len(self._counts)) - 1), more
        per_number = max(len(self._close_counts(few)), 1)
        more = max(more - begun, 0)
        return max(begun * per_number - (len(asked) - len(first)), 0) + more * (per_number - 1), more

    def _shapes(self, begin: Shape | None) -> Iterator[Shape]:
        yield from self._widely() if begin is None else self._uphill(begin)
        for shape in self._best()[: _REFINED if begin is None or self._thorough else 1]:
            if self.told[shape] <= _CLOSE * self._rival_s:
                yield from self._numbers_of_stages(shape)

    def _widely(self) -> Iterator[Shape]:
        few, *more = self._layers
        yield from self._with_layers(few)
        counts, best, idle = self._close_counts(few), self._least(few), 0
        for number in more:
            yield from (Shape(number, count) for count in counts or self._counts[-1:])
            for best_shape in self._best()[:1]:
                count, stages = best_shape.micro_batches, self._stages[best_shape]
                if self._stages.get(Shape(number, count)) != stages:
                    yield Shape(number, count, stages)
            least = self._least(number)
            idle = idle + 1 if least > best * (1 - _GAIN) else 0
            if least < best:
                counts, best = self._close_counts(number), least
            if idle == self._idle and not self._thorough:
                break

    def _with_layers(self, number: int) -> Iterator[Shape]:
        """Every other number of micro-batches from the largest on, and those beside the best two; all if none fits."""
        if self._thorough:
            yield from (Shape(number, count) for count in self._counts[::-1])
            return
        hopeless = 0
        for count in self._counts[::-2]:
            shape = Shape(number, count)
            yield shape
            least = self._least(number)
            hopeless = hopeless + 1 if self.told[shape] > _HOPELESS * least else 0
            # What doesn't fit where smaller micro-batches did won't fit with larger ones either.
            if math.isfinite(least) and (hopeless == _PATIENCE or math.isinf(self.told[shape])):
                break
        best = self._best(number)[:2]
        for shape in best:
            place = self._counts.index(shape.micro_batches)
            yield from (Shape(number, beside) for beside in self._counts[max(place - 1, 0) : place + 2][::-1])
        if not best:
            yield from (Shape(number, count) for count in self._counts)

    def _numbers_of_stages(self, shape: Shape) -> Iterator[Shape]:
        """Half as many stages, and one more and one less as long as that gains."""
        first = self._stages[shape]
        if self._thorough:
            yield from (Shape(shape.layers, shape.micro_batches, n) for n in range(1, shape.layers + 1) if n != first)
            return
        if first // 2:
            yield Shape(shape.layers, shape.micro_batches, first // 2)
        for way in (1, -1):
            least, number = self.told[shape], first + way
            while number > 0:
                other = Shape(shape.layers, shape.micro_batches, number)
                yield other
                if self.told.get(other, math.inf) >= least * (1 - TOLERANCE):
                    break
                least, number = self.told[other], number + way

    def _uphill(self, begin: Shape) -> Iterator[Shape]:
        """Yields a shape, then more micro-batches as long as steps get shorter, or until one fits; else fewer."""
        place = min(range(len(self._counts)), key=lambda n: abs(math.log(self._counts[n] / begin.micro_batches)))
        first = Shape(begin.layers, self._counts[place])
        yield first
        for way in (1, -1):
            least, at = self.told[first], place + way
            while 0 <= at < len(self._counts):
                other = Shape(begin.layers, self._counts[at])
                yield other
                if math.isfinite(least) and self.told[other] >= least * (1 - TOLERANCE):
                    break
                least, at = self.told[other], at + way
            if least < self.told[first]:
                break

    def _least(self, layers: int) -> float:
        return min((step_s for shape, step_s in self.told.items() if shape.layers == layers), default=math.inf)

    def _close_counts(self, layers: int) -> list[int]:
        """The best numbers of micro-batches with so many layers, without those that are far from the best one."""
        far = _CLOSE * self._least(layers)
        return [shape.micro_batches for shape in self._best(layers)[:_COUNTS] if self.told[shape] <= far]

    def _best(self, layers: int | None = None) -> list[Shape]:
        fitting = [
            shape
            for shape, step_s in self.told.items()
            if not shape.stages and math.isfinite(step_s) and layers in (None, shape.layers)
        ]
        return ordered(fitting, key=lambda shape: self.told[shape])
