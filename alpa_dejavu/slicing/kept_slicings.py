"""Slicings and simulated steps kept by the content of their problem, from one question to the next, and from one
process to the next.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final

from alpa_dejavu._util.content import content_digest
from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice

_MOST = 4096
"""So many answers are kept at most; those that were asked for last."""
Answer = TypeVar("Answer")


@final
class KeptSlicings:
    """A store of a slicer's answers, by the content of the problem and the limits on the search for it, and of the
    seconds of simulated steps.

    `changed` says whether answers were added since the store was made or read.
    """

    def __init__(self, answers: Mapping[str, Slicing | float] | None = None) -> None:
        self.changed = False
        self._answers = dict[str, Any](answers or {})

    def of(
        self, problem: SlicingProblem, slice_anew: Callable[[SlicingProblem], Slicing], limits: object = ()
    ) -> Slicing:
        """Returns the answer to a problem, which is sliced if it has none, or if its content isn't known."""
        return self._kept(lambda: slice_anew(problem), problem, limits)

    def step_s(self, simulate: Callable[[], float], *content: object) -> float:
        """Returns the seconds of the step of some content, which is simulated if they aren't known."""
        return self._kept(simulate, "step", *content)

    def _kept(self, answer_anew: Callable[[], Answer], *content: object) -> Answer:
        try:
            digest = content_digest(*content)
        except TypeError:
            return answer_anew()
        answer: Answer | None = self._answers.pop(digest, None)
        if answer is None:
            answer, self.changed = answer_anew(), True
        self._answers[digest] = answer
        return answer

    def data(self) -> dict[str, Any]:
        """Returns the store as JSON's data."""
        return {digest: _data(answer) for digest, answer in [*self._answers.items()][-_MOST:]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> KeptSlicings:
        """Returns the store that JSON's data of `data` describe; TypeError or ValueError where they are broken."""
        return cls({digest: _answer(*answer) for digest, answer in data.items()})


def _data(answer: Slicing | float) -> list[Any]:
    if not isinstance(answer, Slicing):
        return [answer]
    stages = [[stage.first, stage.last, stage.submesh, stage.config] for stage in answer.stages]
    return [answer.cost_s, stages, answer.lower_bound_s, answer.iterations, answer.seconds]


def _answer(seconds: float, *slicing: Any) -> Slicing | float:
    if not slicing:
        return float(seconds)
    stages, bound_s, iterations, solved_s = slicing
    chosen = tuple(StageChoice(*map(operator.index, stage)) for stage in stages)
    return Slicing(chosen, float(seconds), float(bound_s), int(iterations), float(solved_s))
