"""Any of Optuna's pruners as a rule."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from alpa_dejavu._util.quiet_optuna import quiet_optuna
from alpa_dejavu.training.initialization.rules._base import Decision, Rule, Standing, at_least_two


@final
@dataclasses.dataclass(frozen=True)
class OptunaPruner(Rule):
    """A rule by which a pruner of Optuna decides at each rung, a step of judging, whether each candidate
    (initialization in training) goes on, as if all others were complete trials.

    The pruner is told the losses that candidates' trends promise. It is told all of them again each time, so it need
    not remember; if it would prune all candidates, the judge's best one stays.

    Attributes:
        pruner: the pruner, such as `optuna.pruners.MedianPruner()`; None: that one, with no trials to warm up.
        eta: each rung is at so many times the step of the one before.

    Raises ValueError for an eta below 2.

    References:
        Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
    """

    pruner: Any = None
    eta: int = 2

    def __post_init__(self) -> None:
        at_least_two("optuna", self.eta)

    def decide(self, standing: Standing) -> Decision:
        order = standing.waiting_best_first()
        with quiet_optuna() as optuna:
            pruner = self.pruner or optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=0)
            kept = tuple(number for number in order if not _is_pruned(optuna, pruner, standing, number)) or order[:1]
        return Decision(kept, why=f"{type(pruner).__name__} keeps {len(kept)} of {len(order)}")


def _is_pruned(optuna: Any, pruner: Any, standing: Standing, number: int) -> bool:
    """Whether the pruner gives a candidate up at the last rung that it has reached, all others being complete."""
    # Some pruners draw by the study's name, which Optuna makes at random where there is none.
    name, sampler = f"seed {standing.seed}", optuna.samplers.RandomSampler(seed=standing.seed)
    study = optuna.create_study(study_name=name, pruner=pruner, sampler=sampler)
    others = [other for other in sorted(standing.reached) if other != number and standing.reached[other]]
    for each in [*others, number]:
        trial, is_pruned = study.ask(), False
        for step, measure in zip(standing.rungs[standing.skipped.get(each, 0) :], standing.reached[each], strict=False):
            trial.report(measure.promised, step)
            is_pruned = trial.should_prune()
        if each != number:
            study.tell(trial, standing.reached[each][-1].promised)
    return bool(is_pruned)
