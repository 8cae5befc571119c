"""Forward and backward of a function as programs of their own, as the stages of a pipeline run them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu.problem import Operators

__all__ = ["Pass", "both_passes", "forward_pass"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Pass:
    """A program of its own: a function and the arguments that it is run on.

    Attributes:
        function: of `arguments`, positional; gives a flat list of arrays.
        arguments: their abstract values.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @functools.cached_property
    def operators(self) -> Operators:
        """Returns what is known of the program's operators without running it."""
        import jax

        from alpa_dejavu.layers.features import layer_features

        return layer_features(jax.make_jaxpr(self.function)(*self.arguments).jaxpr).operators

    def compiled(self) -> Callable[[], object]:
        """Compiles the program; returns a function that runs it once, to its end, on made-up numbers.

        It runs on jax's default device.
        """
        import jax

        from alpa_dejavu.layers import concrete

        given = jax.device_put(concrete(self.arguments))
        program = jax.jit(self.function).lower(*given).compile()
        return lambda: jax.block_until_ready(program(*given))


def forward_pass(function: Callable[..., Any], weights: Any, data: Any) -> list[Pass]:
    """Returns the function as one program: the forward pass alone."""
    import jax

    return [Pass(lambda *given: jax.tree_util.tree_leaves(function(*given)), (weights, data))]


def both_passes(function: Callable[..., Any], weights: Any, data: Any) -> list[Pass]:
    """Returns two programs: forward, which keeps what backward needs, and backward.

    Args:
        function: of weights and data.
        weights: a tree of abstract arrays; those of floats get gradients.
        data: likewise.
    """
    import jax

    given, tree = jax.tree_util.tree_flatten((weights, data))
    trained = [n for n, leaf in enumerate(given) if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)]

    def pulled(*leaves: Any) -> Any:
        def of_trained(values: Sequence[Any]) -> Any:
            whole = list(leaves)
            for n, value in zip(trained, values, strict=True):
                whole[n] = value
            return function(*jax.tree_util.tree_unflatten(tree, whole))

        return jax.vjp(of_trained, [leaves[n] for n in trained])

    made, pull = jax.eval_shape(pulled, *given)
    kept, pull_tree = jax.tree_util.tree_flatten(pull)
    ahead = Pass(lambda *leaves: jax.tree_util.tree_leaves(pulled(*leaves)), tuple(given))
    back = Pass(
        lambda cotangent, *leaves: jax.tree_util.tree_leaves(
            jax.tree_util.tree_unflatten(pull_tree, leaves)(cotangent)
        ),
        (made, *kept),
    )
    return [ahead, back]
