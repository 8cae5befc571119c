"""Any train step cut into layers: what the layers compute together is what the step computes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jax_models
from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.layers._cut import divide_update
from alpa_dejavu.layers._jaxprs import jaxpr_of
from alpa_dejavu.sharding import model_of_step
from train_steps import OPTIMIZER, STEPS, apply, mean_square, plain, predict, start, weights_and_data, with_aux


def run(layered, traced, values):
    """Runs forward, backward and update layers, one micro-batch, with gradients accumulated from zero."""
    env = dict(values)

    def execute(jaxpr):
        results = core.eval_jaxpr(jaxpr, (), *(env[var] for var in jaxpr.invars))
        pairs = zip(jaxpr.outvars, results, strict=True)
        env.update((var, value) for var, value in pairs if isinstance(var, core.Var))

    for accumulator in layered.accumulators:
        env[accumulator] = jnp.zeros(accumulator.aval.shape, accumulator.aval.dtype)
    for jaxpr in layered.forward:
        execute(jaxpr)
    for jaxpr in reversed(layered.backward):
        execute(jaxpr)
    run_updates(layered.updates, env, execute)
    return env


def run_updates(updates, env, execute):
    """Runs each equation of updates as soon as what it takes is there."""
    waiting = [jaxpr_of([e], e.outvars) for update in updates if update is not None for e in update.eqns]
    while waiting:
        ready = [each for each in waiting if all(var in env for var in each.invars)]
        assert ready, "equations of the updates wait for each other"
        for each in ready:
            execute(each)
            waiting.remove(each)


@pytest.mark.parametrize("function", STEPS)
@pytest.mark.parametrize("remat", ["none", "layer"])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_layers_compute_the_gradients_of_the_step(function, remat, num_layers):
    step, (state, batch) = function()
    traced = trace(function)
    layered = cut_into_layers(traced, num_layers, remat=remat)
    values = {var: np.full(var.aval.shape, 2.0, var.aval.dtype) for var in traced.loss.invars if not var.aval.ndim}
    data = iter([batch["x"], batch["y"]])
    weights = iter(state[0])
    for var in traced.loss.invars:
        if var.aval.ndim:
            values[var] = next(weights) if var in traced.gradients else next(data)
    optimizer = {v for u in layered.updates if u is not None for v in u.invars}
    made = {v for j in (*layered.forward, *layered.backward, *filter(None, layered.updates)) for v in j.outvars}
    values.update((v, jnp.zeros(v.aval.shape, v.aval.dtype)) for v in optimizer - made - set(values))
    env = run(layered, traced, values)
    expected, found = step(state, batch), env
    new = expected[0] if function in (plain, with_aux) else expected
    results = [found[var] for u in layered.updates if u is not None for var in u.outvars]
    for leaf in jax.tree.leaves(new[0]):
        assert any(r.shape == leaf.shape and np.allclose(r, leaf, atol=1e-5) for r in results)


@pytest.mark.alpa
def test_alpas_gradients_are_found():
    import alpa

    def function(batch_size=16):
        def step(state, batch):
            return apply(state, alpa.grad(mean_square)(state[0], batch))

        return step, plain(batch_size)[1]

    model = model_of_step(trace(function), 2)
    plainly = model_of_step(trace(plain), 2)
    assert [layer.backward.total_flop for layer in model.layers] == [
        layer.backward.total_flop for layer in plainly.layers
    ]
    assert [layer.update.total_flop for layer in model.layers] == [layer.update.total_flop for layer in plainly.layers]


def bytes_of(model, role, layer=None):
    return sum(t.num_bytes for t in model.tensors if t.role == role and (layer is None or layer in t.users))


def test_the_model_of_a_step():
    model = model_of_step(trace(plain, batch=16, num_micro_batches=2), 3)
    one = 8 * 8 * 4
    assert model.training
    assert [bytes_of(model, "parameter", n) for n in range(3)] == [2 * one] * 3
    assert [bytes_of(model, "gradient", n) for n in range(3)] == [2 * one] * 3
    count = 4
    assert bytes_of(model, "optimizer") == 2 * 6 * one + count
    assert bytes_of(model, "input") == 2 * 8 * 8 * 4
    product = 2 * 8 * 8 * 8
    assert [layer.forward.product_flop for layer in model.layers] == [2 * product] * 3
    assert [layer.backward.product_flop for layer in model.layers] == [3 * product, 4 * product, 4 * product]


def test_remat_keeps_less_and_computes_more():
    """Of each tanh(x w), y and 1 - y are kept; with remat, layers keep what they take in alone."""
    kept, again = (model_of_step(trace(plain), 3, remat=remat) for remat in ("none", "layer"))
    one, product = 16 * 8 * 4, 2 * 16 * 8 * 8
    gradients, mean_square = 2 * one, 1 * one
    # Later versions of jax find the operand of the square among what its layer keeps already.
    assert bytes_of(kept, "activation") - 6 * 2 * one - gradients in (mean_square, 0)
    assert bytes_of(again, "activation") == 2 * one + gradients
    assert [layer.forward.product_flop for layer in again.layers] == [2 * product] * 3
    assert [layer.backward.product_flop for layer in kept.layers] == [3 * product, 4 * product, 4 * product]
    assert [layer.backward.product_flop for layer in again.layers] == [5 * product, 6 * product, 6 * product]


def frozen_by_closure(state, batch):
    def loss(last):
        return mean_square([*state[0][:-2], *last], batch)

    return jax.grad(loss)(state[0][-2:])


def frozen_by_stop_gradient(state, batch):
    def loss(weights):
        return mean_square([*jax.lax.stop_gradient(weights[:-2]), *weights[-2:]], batch)

    return jax.grad(loss)(state[0])[-2:]


@pytest.mark.parametrize(("gradient", "used"), [(frozen_by_closure, [2, 2, 2]), (frozen_by_stop_gradient, [4, 0, 2])])
def test_frozen_layers_have_no_backward(gradient, used):
    """Alpa's rule leaves what is done to weights before all else, such as `stop_gradient`, to the first layer."""

    def function(batch_size=16):
        def step(state, batch):
            updates, inner = OPTIMIZER.update(gradient(state, batch), state[1])
            return optax.apply_updates(state[0][-2:], updates), inner

        weights, batch = weights_and_data(batch_size)
        return step, ((weights, OPTIMIZER.init(weights[-2:])), batch)

    model = model_of_step(trace(function), 3)
    one = 8 * 8 * 4
    assert [len(layer.backward) for layer in model.layers][:2] == [0, 0]
    assert len(model.layers[2].backward) > 0
    assert [bytes_of(model, "parameter", n) for n in range(3)] == [n * one for n in used]
    assert [bytes_of(model, "gradient", n) for n in range(3)] == [0, 0, 2 * one]
    assert [bytes_of(model, "optimizer", n) for n in range(3)] == [0, 0, 2 * 2 * one + 4]
    assert [len(layer.update) for layer in model.layers][:2] == [0, 0]
    kept_for_backward = [t for t in model.tensors if t.role == "activation" and max(t.users) >= 3]
    assert {t.producer for t in kept_for_backward} == {1, 2}


def test_the_number_of_layers_may_be_left_open():
    layered = cut_into_layers(trace(plain), "auto")
    assert len(layered.forward) == len(layered.backward) >= 1
    with pytest.raises(ValueError, match="num_layers is 'many'"):
        cut_into_layers(trace(plain), "many")
    with pytest.raises(ValueError, match="remat is 'some'"):
        cut_into_layers(trace(plain), 2, remat="some")


def test_a_call_is_never_cut_itself():
    def function(batch_size=16):
        def step(state, batch):
            def loss(weights):
                first = predict(weights[:1], batch["x"])
                return (jax.checkpoint(predict)(weights[1:], first) ** 2).mean()

            return apply(state, jax.grad(loss)(state[0]))

        return step, plain(batch_size)[1]

    with pytest.raises(ValueError, match=r"into 3 layers .* in 2 equations .*; ask for 1 or 2 layers"):
        cut_into_layers(trace(function), 3)
    assert len(cut_into_layers(trace(function), 2).forward) == 2


def test_inference_has_forward_layers_alone():
    def function(batch_size=16):
        weights, batch = weights_and_data(batch_size)
        return jax.jit(lambda weights, batch: predict(weights, batch["x"])), (weights, batch)

    traced = trace(function)
    assert not traced.training
    model = model_of_step(traced, 3)
    assert not model.training
    assert [layer.forward.product_flop for layer in model.layers] == [2 * 2 * 16 * 64] * 3
    assert bytes_of(model, "parameter") == 6 * 64 * 4


def test_layers_that_are_alike_are_described_once():
    def function(batch_size=jax_models.BATCH):
        weights = [jax_models.block_weights() for _ in range(8)]

        def step(state, batch):
            def loss(weights):
                x = batch
                for each in weights:
                    x = jax_models.block(each, x)
                return (x**2).mean()

            return apply(state, jax.grad(loss)(state[0]))

        return step, (start(weights), jnp.zeros((batch_size, jax_models.SEQUENCE, jax_models.HIDDEN)))

    model = model_of_step(trace(function), 8)
    assert model.layers[3].forward is model.layers[4].forward
    assert model.layers[3].backward is model.layers[4].backward
    assert model.layers[3].update is model.layers[4].update


@pytest.mark.parametrize("clipped", [False, True])
def test_a_jitted_update_of_several_layers_is_divided_between_them(clipped):
    @jax.jit
    def adapted(weights, gradients, count):
        count = count + 1
        rate = 0.1 / (1 - 0.9**count)
        if clipped:
            rate = rate / jnp.sqrt(sum((g**2).sum() for g in gradients))
        return [w - rate * g for w, g in zip(weights, gradients, strict=True)], count

    shapes = [(3,), (2, 2), (4,), (5, 2)]
    rng = np.random.default_rng(0)
    weights, gradients = ([rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(2))
    closed = jax.make_jaxpr(lambda *arguments: adapted(*arguments))(weights, gradients, 0.0)
    layers = [0, 1, 1, 2]
    owners = dict(zip(closed.jaxpr.invars, layers * 2, strict=False))
    parts = divide_update(closed.jaxpr, owners, 4)
    assert parts[3] is None
    env = dict(zip(closed.jaxpr.invars, [*weights, *gradients, 0.0], strict=True))

    def execute(jaxpr):
        env.update(zip(jaxpr.outvars, core.eval_jaxpr(jaxpr, (), *(env[var] for var in jaxpr.invars)), strict=True))

    run_updates(parts, env, execute)
    for wanted, layer in zip(adapted(weights, gradients, 0.0)[0], layers, strict=True):
        results = [env[var] for var in parts[layer].outvars if var.aval.shape == wanted.shape]
        assert any(np.allclose(result, wanted) for result in results)
        assert {owners.get(var, layer) for var in parts[layer].invars if var.aval.size > 1} == {layer}
    calls = [equation.primitive.name in ("closed_call", "eval_jaxpr") for part in parts[:3] for equation in part.eqns]
    assert not any(calls) if clipped else all(calls)
