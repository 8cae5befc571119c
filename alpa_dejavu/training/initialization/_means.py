"""Means of finalists, measured beside the best one alone: independent starts don't average, relatives may.

References:
    Wortsman et al., Model Soups: Averaging Weights of Multiple Fine-Tuned Models Improves Accuracy without Increasing
    Inference Time, ICML 2022.
"""

from __future__ import annotations

import math

from alpa_dejavu.training.initialization._align import aligned
from alpa_dejavu.training.initialization._breed import averaged
from alpa_dejavu.training.initialization._field import Field
from alpa_dejavu.training.initialization._layout import Leaves
from alpa_dejavu.training.initialization._task import Runner, Task

MEASURED_STEPS = 4
"""Losses on so many batches, those that come next, say which is better."""
MOST_MEANS = 3


def best_of_means(field: Field, runner: Runner, order: tuple[int, ...]) -> int:
    """Returns the number of the candidate to train on: the best finalist, or a mean of finalists' weights that has a
    smaller loss on the same batches.

    Finalists are taken into the mean one after another, as long as it gets better: those with an ancestor in common as
    they are, others with their units permuted, where it is known which may be. After permuting, weights alone are
    averaged, not the optimizer's state.

    Args:
        field: the candidates of the run.
        runner: the runner that measures losses.
        order: the finalists' numbers, the best first.
    """
    members, best = [order[0]], order[0]
    for other in order[1 : 1 + MOST_MEANS]:
        is_affordable = field.extra_left(field.at(best)) >= 2 * MEASURED_STEPS
        leaves = _mean([*members, other], field) if is_affordable else None
        if leaves is None:
            continue
        mean = field.adopt((*members, other), leaves, len(field.setting.rungs))
        mean_loss, best_loss = (_loss(field, runner, number) for number in (mean, best))
        if math.isinf(best_loss):
            field.drop(mean, f"workers that measured {best} died, so nothing is known to be better")
            return best
        names = ", ".join(map(str, [*members, other]))
        said = f"on the same batches, the mean of {names} has a loss of {mean_loss:.6g}, "
        if mean_loss < best_loss:
            if best != members[0]:
                field.drop(best, f"{said}that of fewer has {best_loss:.6g}")
            members.append(other)
            best = mean
        else:
            field.drop(mean, f"{said}{best} has {best_loss:.6g}")
    return best


def _mean(members: list[int], field: Field) -> Leaves | None:
    """None: they have nothing in common, and no way to be aligned is known."""
    layout = field.layout
    first, *others = members
    states, are_related = [field.store.get(first)], True
    for other in others:
        leaves = field.store.get(other)
        one, another = (field.candidates[number].roots for number in (first, other))
        # A cross of two that began apart has tensors of each, so it isn't near to either.
        if not (len(one) == 1 and one == another):
            if not field.setting.groups:
                return None
            weights = aligned(layout.weights(leaves), layout.weights(states[0]), field.setting.groups)
            leaves, are_related = layout.with_weights(leaves, weights), False
        states.append(leaves)
    return averaged(states, layout, weights_only=not are_related)


def _loss(field: Field, runner: Runner, number: int) -> float:
    """Returns a candidate's mean loss on the batches that come next; nothing is trained."""
    candidate = field.candidates[number]
    tasks = [Task((number,), 1, candidate.step, MEASURED_STEPS, candidate.batch_rows, field.rates([number]), True)]
    loss = math.inf
    for outcome in runner.outcomes(lambda: tasks.pop() if tasks else None):
        field.count(outcome.task)
        if not outcome.lost:
            loss = float(outcome.losses.mean())
    return loss
