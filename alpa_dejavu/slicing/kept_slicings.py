"""Slicings kept by the content of their problem, from one question to the next, and from one process to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from alpa_dejavu._util.content import content_digest
from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice

_MOST = 4096
"""So many answers are kept at most; those that were asked for last."""


@final
class KeptSlicings:
    """A store of a slicer's answers, by the content of the problem.

    `changed` says whether answers were added since the store was made or read.
    """

    def __init__(self, answers: Mapping[str, Slicing] | None = None) -> None:
        self.changed = False
        self._answers = dict(answers or {})

    def of(self, problem: SlicingProblem, slice_anew: Callable[[SlicingProblem], Slicing]) -> Slicing:
        """Returns the answer to a problem, which is sliced if it has none, or if its content isn't known."""
        try:
            digest = content_digest(problem)
        except TypeError:
            return slice_anew(problem)
        answer = self._answers.pop(digest, None)
        if answer is None:
            answer, self.changed = slice_anew(problem), True
        self._answers[digest] = answer
        return answer

    def data(self) -> dict[str, Any]:
        """Returns the store as JSON's data."""
        return {
            digest: [
                [[stage.first, stage.last, stage.submesh, stage.config] for stage in answer.stages],
                answer.cost_s, answer.lower_bound_s, answer.iterations, answer.seconds,
            ]
            for digest, answer in [*self._answers.items()][-_MOST:]
        }  # fmt: skip

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> KeptSlicings:
        """Returns the store that JSON's data of `data` describe; TypeError or ValueError where they are broken."""
        answers = {}
        for digest, (stages, cost_s, bound_s, iterations, seconds) in data.items():
            chosen = tuple(StageChoice(*map(int, stage)) for stage in stages)
            answers[digest] = Slicing(chosen, float(cost_s), float(bound_s), int(iterations), float(seconds))
        return cls(answers)
