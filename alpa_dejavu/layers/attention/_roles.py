"""Which of attention's products each product is that makes scores or takes them."""

from __future__ import annotations

import math
from typing import Any, final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import shape_of
from alpa_dejavu.layers.attention._equations import Equations, Location
from alpa_dejavu.layers.attention._score_region import MixedError, ScoreRegion


@final
class ProductRoles:
    """The products of a region of scores, by what they are for; `scores` is the place of the product of queries and
    keys, None where scores come from another pass.

    Attributes:
        output: the product with the values, if the region has it.
        gradients, factors: the products that are gradients, and their other operands, by the operand that they are of.
        values, cotangent: the values, and the cotangent of the output; None if no product takes them.
        value_head: the elements of a head of values.
        later: the values of the region that depend on the cotangent.

    Raises MixedError where there are more products than attention has, or others.
    """

    def __init__(self, equations: Equations, region: ScoreRegion, scores: Location | None) -> None:
        self._equations, self._region = equations, region
        self.output: Location | None = None
        self.gradients: dict[str, Location] = {}
        self.factors: dict[str, core.Var] = {}
        self.values: core.Var | None = None
        self.cotangent: core.Var | None = None
        self.value_head = 0
        slopes = region.enters - {scores}
        if len(slopes) > 1 or (scores is None and not slopes):
            raise MixedError("there are several products that make scores")
        self.later = region.dependents({var for location in slopes for var in equations.at(location).outvars})
        if not all(self.later.intersection(equations.at(location).invars) for location in region.sums):
            raise MixedError("scores are added up over rows")
        for location, var in region.leaves.items():
            self._leaving(location, var)
        for location in slopes:
            self._entering(location)
        if bool(slopes) != bool({"queries", "keys"} & self.gradients.keys()):
            raise MixedError("a backward pass has no gradients of queries or keys")

    def normalised(self, row_sums: core.Var) -> bool:
        """Returns whether what is multiplied with values, and with the cotangent, depends on the sums of the rows."""
        divided = self._region.dependents({row_sums})
        products = [location for location in (self.output, self.gradients.get("values")) if location is not None]
        return bool(products) and all(self._region.leaves[location] in divided for location in products)

    def _leaving(self, location: Location, var: core.Var) -> None:
        """Notes what a product is for that takes scores."""
        equation = self._equations.at(location)
        left, right = equation.invars
        side = 0 if left is var else 1
        other = (right, left)[side]
        if left is right or not isinstance(other, core.Var) or other in self._region.labels:
            raise MixedError("scores are multiplied with scores")
        contracted, batch = _dimensions(equation)
        gone = {self._region.labels[var][dim] for dim in contracted[side]}
        if self._region.keys in gone:
            role = "queries" if var in self.later else "output"
        elif not self._region.queries.isdisjoint(gone):
            role = "keys" if var in self.later else "values"
        else:
            raise MixedError("scores are multiplied along something else than tokens")
        if role in self.factors:
            raise MixedError("scores are multiplied several times")
        self.factors[role] = other
        if role == "output":
            free = set(range(len(shape_of(other)))).difference(contracted[1 - side], batch[1 - side])
            self.output, self.values = location, other
            self.value_head = math.prod(shape_of(other)[dim] for dim in free)
        else:
            self.gradients[role] = location

    def _entering(self, location: Location) -> None:
        """Notes the operands of the product of the output's cotangent and the values."""
        equation = self._equations.at(location)
        contracted, batch = _dimensions(equation)
        place = self._region.labels[equation.outvars[0]].index(self._region.keys)
        num_left = len(shape_of(equation.invars[0])) - len(contracted[0])
        values, cotangent = equation.invars if place < num_left else equation.invars[::-1]
        if place < len(batch[0]) or not isinstance(values, core.Var) or not isinstance(cotangent, core.Var):
            raise MixedError("scores are no product of tokens")
        self.values, self.cotangent = values, cotangent
        self.value_head = math.prod(shape_of(values)[dim] for dim in contracted[0 if place < num_left else 1])


def _dimensions(equation: core.JaxprEqn) -> Any:
    """A product's contracted dimensions of both operands, and their batch dimensions."""
    return equation.params["dimension_numbers"]
