"""Matrix products by two models, one of tiles in waves and one of trees, joined in several forms.

How well a form does on GPUs (or kinds of kernels) that a fit had left out decides how much it weighs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.costs.latency._floors import Floors
from alpa_dejavu.costs.latency._kernels import Array, Kernels
from alpa_dejavu.costs.latency._tiles import Tiles
from alpa_dejavu.costs.latency._trees import ShapeTrees

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import ProductsData

_UNSURE = 0.02
"""How far apart, in logarithms, mean errors on groups left out must be to say much: about their standard error."""


@final
@dataclasses.dataclass(frozen=True)
class Form:
    """A form of the model of matrix products.

    Attributes:
        of_gpu: whether trees look at the GPU besides the shape.
        tiles_share: the weight of tiles in the mean of the logarithms; that of trees is the rest.
        likeness: how much alike GPUs of a generation are (`ShapeTrees.offset`).
    """

    of_gpu: bool
    tiles_share: float
    likeness: float


FORMS = tuple(Form(*choice) for choice in itertools.product((False, True), (0.25, 0.5, 0.75), (0.0, 1.0, 3.0)))
"""The forms that are tried."""


def weights_of_forms(losses: Sequence[Array]) -> dict[Form, float]:
    """Returns the weights of the forms that are used, by each form's mean error on each group that was left out.

    Trees look at the GPU, or don't: the way with more weight is kept, trees by shapes alone where there is no error.

    References:
        Littlestone and Warmuth, The Weighted Majority Algorithm, Information and Computation 108, 1994.
    """
    mean = np.mean(losses, axis=0) if losses else np.zeros(len(FORMS))
    weights = np.exp((mean.min() - mean) / _UNSURE)
    looks = np.array([form.of_gpu for form in FORMS])
    kept = looks == (weights[looks].sum() > weights[~looks].sum())
    whole = weights[kept].sum()
    return {form: float(weight / whole) for form, weight, keep in zip(FORMS, weights, kept, strict=True) if keep}


@final
class ProductModels:
    """A latency model of matrix products of all kinds, by tiles and trees in weighted forms.

    Args:
        weights: the weight of each form; they add up to 1.
    """

    def __init__(self, weights: Mapping[Form, float]) -> None:
        self.weights = dict(weights)

    def fit(self, kernels: Kernels, seconds: Array, floors: Floors) -> ProductModels:
        """Fits what the forms need to measured seconds of matrix products; `floors` has the least seconds of each kind
        of kernel.
        """
        self._tiles = {}
        for op in np.unique(kernels.op).tolist():
            chosen = kernels.op == op
            self._tiles[op] = Tiles().fit(kernels.take(chosen), seconds[chosen], floors)
        looks = sorted({form.of_gpu for form in self.weights})
        self._trees = {of_gpu: ShapeTrees(of_gpu).fit(kernels, seconds) for of_gpu in looks}
        return self

    def by_form(self, kernels: Kernels) -> Array:
        """Returns the logarithms of the predicted seconds by each form, shape (kernels, forms)."""
        tiles = self._of_tiles(kernels)
        shapes = {of_gpu: trees.log_seconds(kernels) for of_gpu, trees in self._trees.items()}
        found = []
        for form in self.weights:
            trees = shapes[form.of_gpu] + self._trees[form.of_gpu].offset(kernels, form.likeness)
            found.append(form.tiles_share * tiles + (1 - form.tiles_share) * trees)
        return np.stack(found, axis=1)

    def state(self) -> ProductsData:
        """Returns the fitted models and the weights of their forms as JSON's types."""
        (trees,) = self._trees.values()
        return {
            "forms": [[form.tiles_share, form.likeness, weight] for form, weight in self.weights.items()],
            "tiles": {op: each.state() for op, each in self._tiles.items()},
            "shapes": trees.state(),
        }

    @classmethod
    def of_state(cls, state: ProductsData, floors: Floors) -> ProductModels:
        """Returns the fitted models in `state`, as the method `state` gives them; `floors` has the least seconds of
        each kind of kernel.

        Raises:
            ValueError: parts of a model don't fit each other; says which.
        """
        of_gpu = state["shapes"]["of_gpu"]
        made = cls({Form(of_gpu, share, likeness): weight for share, likeness, weight in state["forms"]})
        made._tiles = {op: Tiles.of_state(each, floors) for op, each in state["tiles"].items()}
        made._trees = {of_gpu: ShapeTrees.of_state(state["shapes"])}
        return made

    def _of_tiles(self, kernels: Kernels) -> Array:
        result = np.zeros(len(kernels))
        for op in np.unique(kernels.op).tolist():
            chosen = kernels.op == op
            part = kernels.take(chosen)
            tiles = [self._tiles[op]] if op in self._tiles else list(self._tiles.values())
            result[chosen] = np.mean([each.log_seconds(part) for each in tiles], axis=0)
        return result
