"""What holds for any network, any number of layers and any choice of what is trained: counts by hand."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.layers import cut_into_layers, most_layers, trace
from alpa_dejavu.sharding import model_of_step

BATCH = 4
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def network(widths, trained):
    """A network of products that trains the chosen weights; the others are taken from outside of the loss."""

    def function(batch_size=BATCH):
        def step(state, batch):
            weights, inner = state

            def loss(chosen):
                x, rest = batch, iter(chosen)
                for weight, is_trained in zip(weights, trained, strict=True):
                    x = jnp.tanh(x @ (next(rest) if is_trained else weight))
                return (x**2).mean()

            chosen = [weight for weight, is_trained in zip(weights, trained, strict=True) if is_trained]
            updates, inner = OPTIMIZER.update(jax.grad(loss)(chosen), inner)
            return optax.apply_updates(chosen, updates), inner

        weights = [jax.ShapeDtypeStruct(pair, jnp.float32) for pair in itertools.pairwise(widths)]
        chosen = [weight for weight, is_trained in zip(weights, trained, strict=True) if is_trained]
        state = weights, jax.eval_shape(OPTIMIZER.init, chosen)
        return step, (state, jax.ShapeDtypeStruct((batch_size, widths[0]), jnp.float32))

    return function


def num_bytes(model, role):
    return sum(tensor.num_bytes for tensor in model.tensors if tensor.role == role)


@st.composite
def networks(draw):
    """Widths, which weights are trained, and a number of layers that Alpa's rule allows."""
    depth, num_layers = draw(st.sampled_from([(3, 1), (4, 2), (5, 2), (6, 2), (3, 3), (5, 3), (6, 3), (7, 3), (8, 4)]))
    width = draw(st.integers(2, 9))
    trained = draw(st.lists(st.booleans(), min_size=depth, max_size=depth).filter(any))
    return [width] * (depth + 1), trained, num_layers


@settings(max_examples=25, deadline=None)
@given(networks(), st.sampled_from(["none", "layer"]))
def test_counts_are_those_by_hand(drawn, remat):
    widths, trained, num_layers = drawn
    sizes = [a * b for a, b in itertools.pairwise(widths)]
    model = model_of_step(trace(network(widths, trained)), num_layers, remat=remat)
    first = trained.index(True)
    forward = 2 * BATCH * sum(sizes)
    by_weights = 2 * BATCH * sum(size for size, is_trained in zip(sizes, trained, strict=True) if is_trained)
    by_inputs = 2 * BATCH * sum(sizes[first + 1 :])
    assert sum(layer.forward.product_flop for layer in model.layers) == forward
    backward = sum(layer.backward.product_flop for layer in model.layers)
    if remat == "none":
        assert backward == by_weights + by_inputs
    else:
        assert by_weights + by_inputs <= backward <= by_weights + by_inputs + forward
    assert num_bytes(model, "parameter") == 4 * sum(sizes)
    trained_bytes = 4 * sum(size for size, is_trained in zip(sizes, trained, strict=True) if is_trained)
    assert num_bytes(model, "gradient") == num_bytes(model, "optimizer") == trained_bytes


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 4]))
def test_what_a_micro_batch_takes_grows_with_it(num_layers, parts):
    function = network([8] * 6, [True] * 5)
    whole, part = (
        model_of_step(trace(function, batch=32, num_micro_batches=count), num_layers) for count in (1, parts)
    )
    for role, ratio in (("activation", parts), ("input", parts), ("parameter", 1), ("gradient", 1), ("optimizer", 1)):
        scalars = 64.0 if role == "activation" else 0.0
        assert num_bytes(whole, role) == pytest.approx(ratio * num_bytes(part, role), abs=scalars)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([4, 8, 16]), min_size=2, max_size=9), st.integers(1, 8))
def test_as_many_layers_as_can_be(widths, wanted):
    traced = trace(network(widths, [True] * (len(widths) - 1)))
    number = most_layers(traced, wanted)
    assert 1 <= number <= wanted
    assert len(cut_into_layers(traced, number).forward) == number
    for more in range(number + 1, min(wanted, len(widths) - 1) + 1):
        with pytest.raises(ValueError, match="can't be cut into"):
            cut_into_layers(traced, more)


@settings(max_examples=25, deadline=None)
@given(networks())
def test_what_is_before_all_that_is_trained_has_forward_alone(drawn):
    widths, trained, num_layers = drawn
    model = model_of_step(trace(network(widths, trained)), num_layers)
    before, first = 0, trained.index(True)
    for n, layer in enumerate(model.layers):
        before += round(layer.forward.product_flop / (2 * BATCH * widths[0] ** 2))
        kept = [t for t in model.tensors if t.role in ("gradient", "optimizer") and n in t.users]
        if before <= first:
            assert len(layer.backward) == len(layer.update) == len(kept) == 0
        else:
            assert len(layer.backward) > 0
