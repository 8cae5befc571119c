"""Partial sums that are reduce-scattered along tokens, so that norms and residuals are divided, too."""

import collections
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import layer_models
from alpa_dejavu.layers import trace
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions, solve
from alpa_dejavu.sharding._operator import DotDims
from alpa_dejavu.sharding.layer_sharding import MEMORY
from alpa_dejavu.sharding.solved import solver_of_step
from operators import dot, elementwise, output, parameter

WAYS = 4
MESH = LogicalMesh((1, WAYS), (1.0, 1.0), (1.0, 0.1))
WHOLE, TOKENS, LAST = ((), (), ()), ((), (1,), ()), ((), (), (1,))


def options(sequence_parallel=True):
    return ShardingOptions(force_batch_dim_to_mesh_dim=0, sequence_parallel=sequence_parallel)


def gated_block(batch, tokens, hidden, wide):
    """A residual around two products by weights' columns, which are multiplied, and one by rows."""
    narrow, broad, last = (batch, tokens, hidden), (batch, tokens, wide), DotDims((), (), (2,), (0,))
    return [
        parameter(*narrow), elementwise(0, shape=narrow, name="tanh"),
        parameter(hidden, wide, pinned=((), (1,))), parameter(hidden, wide, pinned=((), (1,))),
        dot(1, 2, *broad, dims=last), dot(1, 3, *broad, dims=last), elementwise(4, 5, shape=broad, name="multiply"),
        parameter(wide, hidden, pinned=((1,), ())), dot(6, 7, *narrow, dims=last),
        elementwise(0, 8, shape=narrow), output(9, *narrow),
    ]  # fmt: skip


def by_hand(batch, tokens, hidden, wide):
    """The least cost of such a block, of all layouts of the residual, of its function, and of the last sum.

    The residual's input is whole at a small penalty. Results go through memory at a twentieth of the cost of links.
    """
    narrow, broad, links = 4.0 * batch * tokens * hidden, 4.0 * batch * tokens * wide, 0.1 * (WAYS - 1) / WAYS
    gathered, scattered, reduced = (
        1 + links * narrow + 0.1, 1 + links * narrow + 0.001, 1 + 2 * links * narrow + 0.01,
    )  # fmt: skip
    share = {"whole": 1.0, "tokens": 1.0 / WAYS}
    penalty = {"whole": float(int(1.01 + 1 + 2 * links + 0.01)), "tokens": 0.0}
    to_whole = {"whole": 0.0, "tokens": gathered}
    cost = {}
    for start, total in itertools.product(share, share):
        # The function is cut like what it is of; the sum of both like the products' sum, where the start is brought.
        moved = 2 * narrow * share[start] + 2 * narrow * share[total] + narrow * share[total] + 3 * broad / WAYS
        added = {"whole": reduced, "tokens": scattered}[total]
        brought = gathered if (start, total) == ("tokens", "whole") else 0.0
        cost[start, total] = penalty[start] + to_whole[start] + added + brought + 0.005 * moved
    return min(cost.values())


@pytest.mark.parametrize("sizes", [(1, 4, 4, 16), (1, 256, 512, 1024), (2, 64, 1024, 512)])
def test_a_block_costs_as_little_as_the_best_layout_by_hand(sizes):
    solution = solve(gated_block(*sizes), MESH, options())
    assert solution.objective == pytest.approx(by_hand(*sizes))
    plain = solve(gated_block(*sizes), MESH, options(False))
    assert plain.strategies[8].all_reduce == (1,)
    assert plain.strategies[8].output == WHOLE


def test_what_a_large_block_shares_is_divided_between_its_products():
    layouts = solve(gated_block(1, 256, 512, 1024), MESH, options()).outputs
    assert (layouts[6], layouts[8], layouts[9]) == (LAST, TOKENS, TOKENS)


def test_tokens_that_do_not_come_out_even_stay_whole():
    layouts = solve(gated_block(1, 255, 512, 1024), MESH, options()).outputs
    assert layouts[9] == WHOLE


def of_llama(ways, sequence_parallel, batch=2, tokens=2048, hidden=1024):
    """A block among devices, of which each keeps what."""
    sizes = f"transformer:hidden={hidden},blocks=3,heads=16,vocabulary=8192,sequence={tokens}"
    step = trace(sizes, batch=batch)
    return solver_of_step(step, 5, sequence_parallel=sequence_parallel)(1, ways, True)[0].whole[2]


@pytest.mark.parametrize("ways", [4, 8])
def test_a_blocks_exchanges_and_activations_are_those_by_hand(ways):
    """Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023: four all-gathers
    and four reduce-scatters for four all-reduces. Kept in bytes of each element: the outputs of both norms in half
    precision, 2 + 2, which XLA keeps gathered, since both passes gather them; and 16 more of norms in single precision.
    """
    elements = 2 * 2048 * 1024
    whole, plain, cut = (
        dict(zip(MEMORY, of_llama(*case).memory(), strict=True)) for case in ((1, True), (ways, False), (ways, True))
    )

    def sent(sequence_parallel):
        exchanges = of_llama(ways, sequence_parallel).collectives
        of_batch = [one for one in exchanges if one.phase in ("forward", "backward")]
        assert {one.num_bytes for one in of_batch} == {2.0 * elements}
        return collections.Counter({(one.kind, one.phase): one.count for one in of_batch})

    assert sent(False) == {("all_reduce", "forward"): 2, ("all_reduce", "backward"): 2}
    assert sent(True) == {
        ("all_gather", "forward"): 2, ("reduce_scatter", "forward"): 2,
        ("all_gather", "backward"): 2, ("reduce_scatter", "backward"): 2,
    }  # fmt: skip
    for kept, together in ((plain, 20), (cut, 4)):
        divided = whole["activation"] - together * elements
        assert kept["activation"] == pytest.approx(divided / ways + together * elements, rel=0.02)
    assert cut["input"] == pytest.approx(plain["input"] / ways)


def test_two_devices_sum_up_whole():
    kinds = [{one.kind for one in of_llama(2, choice).collectives} for choice in (False, True)]
    assert kinds == [{"all_reduce"}] * 2


def test_a_program_in_which_jax_is_told_so_gathers_and_sums_as_solved():
    """XLA makes all-reduces with slices here; on GPUs it makes these reduce-scatters."""
    ways, hidden = 8, 512
    axis = jax.sharding.Mesh(np.array(jax.devices()[:ways]), ("ways",))
    sizes = layer_models.shapes(g=(hidden,), h=(hidden,), up=(hidden, 2048), down=(2048, hidden))
    x = jax.ShapeDtypeStruct((2, 64, hidden), jnp.float32)

    def placed(*cuts):
        return jax.sharding.NamedSharding(axis, jax.sharding.PartitionSpec(*cuts))

    def block(p, x, cut=lambda x: x):
        return cut(x + jax.nn.gelu(cut(layer_models.norm(x, p["g"], p["h"])) @ p["up"]) @ p["down"])

    def loss(parameters, x):
        for p in parameters:
            x = block(p, x, lambda x: jax.lax.with_sharding_constraint(x, placed(None, "ways")))
        return (x**2).mean()

    where = [{"g": placed(), "h": placed(), "up": placed(None, "ways"), "down": placed("ways")}] * 3
    into = where, placed(None, "ways")
    compiled = jax.jit(jax.grad(loss, (0, 1)), in_shardings=into, out_shardings=into).lower([sizes] * 3, x).compile()
    large = re.findall(r"= f32\[2,64,512\]\S* (all-reduce|all-gather)\(", compiled.as_text())

    last = layer_models._before(block, sizes, lambda p, x: (x**2).mean(), {})
    layers = layer_models.chain_of([(block, sizes)] * 2 + [last], x)
    mesh = LogicalMesh((1, ways), (1.0, 1.0), (1.0, 0.1))
    exchanges = layer_models.sharded_as_one(layers, mesh, options()).collectives
    solved = [(one.kind, one.phase, one.count) for one in exchanges if one.num_bytes == 4 * 2 * 64 * hidden]
    pairs = itertools.product(("all_gather", "reduce_scatter"), ("forward", "backward"))
    assert sorted(solved) == sorted((*pair, 3) for pair in pairs)
    assert collections.Counter(large) == {"all-gather": 6, "all-reduce": 6}
