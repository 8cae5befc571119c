"""Attention found in traced steps, and priced and kept as fused kernels, which compute what the model computes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers import attention_of, cut_into_layers, trace, with_attention
from alpa_dejavu.layers.attention.kernel import attention_p
from alpa_dejavu.layers.marks import mark_layer_end
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.layers.models._sizes import BERT, GPT
from alpa_dejavu.layers.models._transformer import bert_step, transformer_forward, transformer_step
from alpa_dejavu.problem import FusedAttention
from alpa_dejavu.sharding import model_of_step

nn = pytest.importorskip("flax.linen")

BATCH, TOKENS, HEADS, HEAD = 2, 16, 4, 8
HIDDEN = HEADS * HEAD


def attending(
    attend, *, tokens=TOKENS, key_tokens=TOKENS, key_heads=HEADS, dtype=jnp.float32, more=None, blocks=1, wrap=None
):
    """A model function of blocks of attention: `attend(query, key, value, weights, data)` with projections about it."""
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, key_heads * HEAD), "v": (HIDDEN, key_heads * HEAD)}
    shapes |= {"o": (HIDDEN, HIDDEN), **(more or {})}

    def block(weights, x, y, data):
        query = (x @ weights["q"]).reshape(-1, tokens, HEADS, HEAD)
        key, value = ((y @ weights[name]).reshape(-1, key_tokens, key_heads, HEAD) for name in "kv")
        return x + (attend(query, key, value, weights, data).reshape(x.shape) @ weights["o"]).astype(x.dtype)

    run = block if wrap is None else wrap(block)

    def function(batch_size):
        def step(weights, data):
            def loss(weights):
                x = data["x"]
                for each in weights:
                    x = run(each, x, data["y"] if key_tokens != tokens else x, data)
                return (x.astype(jnp.float32) ** 2).mean()

            return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

        weights = [{name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()} for _ in range(blocks)]
        data = {
            "x": jax.ShapeDtypeStruct((batch_size, tokens, HIDDEN), dtype),
            "y": jax.ShapeDtypeStruct((batch_size, key_tokens, HIDDEN), dtype),
            "there": jax.ShapeDtypeStruct((batch_size, key_tokens), jnp.bool_),
            "key": jax.ShapeDtypeStruct((2,), jnp.uint32),
        }
        return step, (weights, data)

    return function


def past():
    return jnp.tril(jnp.ones((TOKENS, TOKENS), bool))


def mixed(query, key, value, mask=None, softmax=jax.nn.softmax, dtype=None):
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / math.sqrt(HEAD), key)
    scores = scores if mask is None else jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weight = softmax(scores.astype(dtype or scores.dtype)).astype(query.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weight, value)


def plain(query, key, value, weights, data):
    return mixed(query, key, value)


def causal(query, key, value, weights, data):
    return mixed(query, key, value, past())


def in_single_precision(query, key, value, weights, data):
    return mixed(query, key, value, past(), dtype=jnp.float32)


def by_hand(scores):
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def with_a_gradient_rule(query, key, value, weights, data):
    @jax.custom_jvp
    def softmax(x):
        return by_hand(x)

    @softmax.defjvp
    def rule(primals, tangents):
        y, slope = softmax(*primals), tangents[0]
        return y, y * (slope - (y * slope).sum(-1, keepdims=True))

    return mixed(query, key, value, softmax=softmax)


def with_dropout(query, key, value, weights, data):
    def softmax(scores):
        weight = jax.nn.softmax(scores)
        return jnp.where(jax.random.bernoulli(data["key"], 0.9, weight.shape), weight / 0.9, 0)

    return mixed(query, key, value, softmax=softmax)


def with_bias(query, key, value, weights, data):
    return mixed(query, key, value, softmax=lambda scores: jax.nn.softmax(scores + weights["bias"]))


def with_slopes(query, key, value, weights, data):
    places = jnp.arange(TOKENS)
    slopes = jnp.arange(HEADS)[:, None, None] * jnp.abs(places[:, None] - places[None, :])
    mask = places[:, None] >= places[None, :]
    return mixed(query, key, value, softmax=lambda s: jax.nn.softmax(jnp.where(mask, s - slopes, -jnp.inf)))


def padded(query, key, value, weights, data):
    return mixed(query, key, value, jnp.logical_and(past(), data["there"][:, None, None, :]))


def capped(query, key, value, weights, data):
    return mixed(query, key, value, softmax=lambda s: jax.nn.softmax(jnp.where(past(), 50 * jnp.tanh(s / 50), -2e38)))


def grouped(query, key, value, weights, data):
    query = query.reshape(*query.shape[:2], key.shape[2], -1, HEAD)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", query, key) + jnp.where(past(), 0, -1e9)
    return jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(scores), value)


def as_later_versions_of_jax(query, key, value, weights, data):
    """`jax.nn.dot_product_attention(..., implementation="xla")`, with groups of queries by `jax.vmap`."""

    def core_of(query, key, value):
        scores = jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=jnp.float32) * 0.3
        scores = jnp.where(jnp.tril(jnp.ones((1, 1, TOKENS, TOKENS), bool)), scores, -0.7 * np.finfo(np.float32).max)
        return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(scores).astype(key.dtype), value)

    groups = query.reshape(*query.shape[:2], key.shape[2], -1, HEAD)
    return jax.vmap(core_of, in_axes=(3, None, None), out_axes=3)(groups, key, value)


def heads_first(query, key, value, weights, data):
    query, key, value = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
    weight = jax.nn.softmax(jnp.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(HEAD))
    return jnp.matmul(weight, value).transpose(0, 2, 1, 3)


def mapped(query, key, value, weights, data):
    return jax.vmap(jax.vmap(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, 1, 1))(query, key, value)


def in_windows(query, key, value, weights, data):
    """Windows of four tokens, with a mask for each window, as in Swin transformers."""
    query, key, value = (x.reshape(-1, 4, HEADS, HEAD) for x in (query, key, value))
    windows = jnp.arange(TOKENS // 4)[:, None, None]
    mask = jnp.where(windows > jnp.arange(16).reshape(4, 4), 0.0, -100.0)

    def softmax(scores):
        whole = scores.reshape(-1, TOKENS // 4, HEADS, 4, 4) + mask[None, :, None]
        return jax.nn.softmax(whole.reshape(scores.shape))

    return mixed(query, key, value, softmax=softmax)


def flax(query, key, value, weights, data, is_causal=True, dropout=0.0):
    mask = nn.make_causal_mask(jnp.ones(query.shape[:2])) if is_causal else None
    return nn.dot_product_attention(
        query, key, value, mask=mask, dropout_rate=dropout, dropout_rng=data["key"], deterministic=not dropout
    )


half = {"dtype": jnp.bfloat16}
# What attends, how, and what is found: (causal, batch, tokens, key tokens, heads, key heads).
WRITTEN = {
    "plain": (plain, {}, (False, 2, 16, 16, 4, 4)),
    "causal": (causal, {}, (True, 2, 16, 16, 4, 4)),
    "single precision": (in_single_precision, half, (True, 2, 16, 16, 4, 4)),
    "gradient rule": (with_a_gradient_rule, {}, (False, 2, 16, 16, 4, 4)),
    "dropout": (with_dropout, {}, (False, 2, 16, 16, 4, 4)),
    "bias": (with_bias, {"more": {"bias": (HEADS, TOKENS, TOKENS)}}, (False, 2, 16, 16, 4, 4)),
    "slopes": (with_slopes, {}, (True, 2, 16, 16, 4, 4)),
    "padded": (padded, {}, (True, 2, 16, 16, 4, 4)),
    "capped": (capped, {}, (True, 2, 16, 16, 4, 4)),
    "grouped": (grouped, {"key_heads": 2}, (True, 2, 16, 16, 4, 2)),
    "later jax": (as_later_versions_of_jax, {"key_heads": 2}, (True, 2, 16, 16, 4, 2)),
    "heads first": (heads_first, {}, (False, 2, 16, 16, 4, 4)),
    "mapped": (mapped, {}, (False, 2, 16, 16, 4, 4)),
    "windows": (in_windows, {}, (False, 8, 4, 4, 4, 4)),
    "flax causal": (flax, half, (True, 2, 16, 16, 4, 4)),
    "flax dropout": (functools.partial(flax, dropout=0.1), {}, (True, 2, 16, 16, 4, 4)),
    "cross": (plain, {"key_tokens": 32}, (False, 2, 16, 32, 4, 4)),
}


def records(model, kind="attention"):
    """The records of a kind in the forward passes, and in the backward passes."""
    return tuple(
        [record for layer in model.layers for record in layer.operators(phase).records if record.kind == kind]
        for phase in ("forward", "backward")
    )


def results(layered):
    """The numbers that a layered step's passes come to: its loss and its gradients."""
    rng, known = np.random.default_rng(0), {}
    for jaxpr in (*layered.forward, *reversed(layered.backward)):
        for var in jaxpr.invars:
            if var not in known:
                known[var] = layered.constants.get(var, numbers(rng, var.aval, var in layered.accumulators))
        values = core.eval_jaxpr(jaxpr, (), *[known[var] for var in jaxpr.invars])
        known.update((v, x) for v, x in zip(jaxpr.outvars, values, strict=True) if isinstance(v, core.Var))
    return [np.array(known[var], np.float32) for var in (*layered.results, *layered.accumulators.values())]


def numbers(rng, aval, zeros):
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return jnp.zeros(aval.shape, aval.dtype) if zeros else jnp.array(rng.normal(0, 0.3, aval.shape), aval.dtype)
    return jnp.array(rng.integers(0, 2 if aval.dtype == bool else 9, aval.shape), aval.dtype)


@pytest.fixture(autouse=True)
def _kernels_compute(monkeypatch):
    """Kernels' equations compute the operations that they stand for."""
    monkeypatch.setattr(
        attention_p, "impl", lambda *operands, kernel, jaxpr: core.eval_jaxpr(jaxpr, (), *operands), raising=False
    )


def sizes_left(layered):
    """The numbers of elements of all that passes compute outside of kernels, but constant masks."""
    return {
        math.prod(var.aval.shape)
        for jaxpr in (*layered.forward, *layered.backward)
        for equation in jaxpr.eqns
        for var in equation.outvars
    }


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *((name, "kept") for name in WRITTEN),
        *((name, "computed again") for name in ("causal", "bias", "grouped", "windows", "flax dropout", "cross")),
    ],
)
def test_attention_is_found_however_it_is_written(name, kept):
    attend, options, (is_causal, batch, tokens, key_tokens, heads, key_heads) = WRITTEN[name]
    attend = attend if kept == "kept" else jax.checkpoint(attend)
    traced = trace(attending(attend, **options), batch=BATCH)
    assert (attention_of(traced).by_pattern, attention_of(traced).by_call) == (1, 0)
    model = model_of_step(traced, 1, attention="fused")
    (ahead,), (back,) = records(model)
    pairs = batch * heads * tokens * key_tokens
    for record, of_forward in ((ahead, 1.0), (back, 2.5)):
        assert FusedAttention.of_text(record.kernel) == FusedAttention("cudnn", is_causal, of_forward > 1)
        assert record.input_shapes[:2] == ((batch, tokens, heads, HEAD), (batch, key_tokens, key_heads, HEAD))
        assert record.flop == of_forward * 4 * pairs * HEAD / (2 if is_causal else 1)
    layered = cut_into_layers(traced, 1)
    fused = with_attention(layered, "fused")
    # Queries of all heads are fewer elements than scores, here as everywhere else.
    assert pairs not in sizes_left(fused)
    assert pairs in sizes_left(layered) or kept == "computed again"
    for x, y in zip(results(layered), results(fused), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-2 * np.abs(x).max() if options == half else 1e-6)


def test_bytes_by_hand():
    """Queries, keys, values, the output, and a number of four bytes for each row and head."""
    size, rows = BATCH * TOKENS * HEADS * HEAD * 4, BATCH * HEADS * TOKENS * 4
    (ahead,), (back,) = records(model_of_step(trace(attending(causal), batch=BATCH), 1, attention="fused"))
    assert (ahead.read_bytes, ahead.written_bytes, ahead.passed_bytes) == (3 * size, size + rows, size + rows)
    assert (back.read_bytes, back.written_bytes) == (5 * size + rows, 3 * size)
    # The projection behind attention has read the output before.
    assert back.passed_bytes == 3 * size + rows
    assert (ahead.parameter_bytes, ahead.unbatched_read_bytes, ahead.dtype) == (0, 0, "float32")
    size, rows = BATCH * TOKENS * HEADS * HEAD * 2, BATCH * HEADS * TOKENS * 4
    made = model_of_step(trace(attending(in_single_precision, dtype=jnp.bfloat16), batch=BATCH), 1, attention="fused")
    (ahead,), (back,) = records(made)
    assert (ahead.read_bytes, ahead.written_bytes, ahead.dtype) == (3 * size, size + rows, "bfloat16")
    assert (back.read_bytes, back.written_bytes, back.dtype) == (5 * size + rows, 3 * size, "bfloat16")


def test_a_bias_is_read_once_and_has_a_gradient_without_a_batch():
    attend, options, _ = WRITTEN["bias"]
    (ahead,), (back,) = records(model_of_step(trace(attending(attend, **options), batch=BATCH), 1, attention="fused"))
    bias, size = HEADS * TOKENS * TOKENS * 4, BATCH * TOKENS * HEADS * HEAD * 4
    assert ahead.parameter_bytes == ahead.unbatched_read_bytes == back.unbatched_read_bytes == bias
    assert ahead.read_bytes == 3 * size + bias
    assert back.written_bytes == 3 * size + bias


class Block(nn.Module):
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x):
        attend = nn.MultiHeadDotProductAttention(
            HEADS, dropout_rate=self.dropout, deterministic=not self.dropout, dtype=jnp.bfloat16
        )
        x = x + attend(nn.LayerNorm()(x), mask=nn.make_causal_mask(jnp.ones(x.shape[:2])))
        return x + nn.Dense(HIDDEN)(nn.gelu(nn.Dense(4 * HIDDEN)(nn.LayerNorm()(x))))


class Blocks(nn.Module):
    block: type = Block
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = self.block(self.dropout)(x)
        return x


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        over = nn.scan(
            lambda block, x, _: (block(x), None), variable_axes={"params": 0}, split_rngs={"params": True}, length=2
        )
        return over(Block(), x, None)[0]


@pytest.mark.parametrize("network", [Blocks(), Blocks(dropout=0.1), Blocks(nn.remat(Block)), Scanned()])
def test_modules_of_flax(network):
    def function(batch_size):
        x, key = jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.uint32)

        def step(weights, data):
            def loss(weights):
                return (network.apply(weights, data["x"], rngs={"dropout": data["key"]}) ** 2).mean()

            return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

        return step, (jax.eval_shape(network.init, key, x), {"x": x, "key": key})

    if getattr(network, "dropout", 0.0):
        create = network.init
        network = network.clone()
        object.__setattr__(network, "init", lambda key, x: create({"params": key, "dropout": key}, x))
    traced = trace(function, batch=BATCH)
    ahead, back = records(model_of_step(traced, 2, attention="fused"))
    assert [record.kernel for record in ahead] == ["cudnn causal"] * 2
    assert [record.kernel for record in back].count("cudnn causal backward") == 2
    assert {record.dtype for record in (*ahead, *back)} == {"bfloat16"}


@pytest.mark.parametrize(
    ("function", "number", "kernel", "heads"),
    [
        (functools.partial(transformer_step, GPT(32, 2, 4, 64, 16)), 2, "cudnn causal", (4, 4)),
        (functools.partial(bert_step, BERT(32, 2, 4, 64, 16)), 2, "cudnn", (4, 4)),
        (Transformer(32, 2, 4, 64, 16, kv_heads=2).text, 2, "cudnn causal", (4, 2)),
        (Transformer(32, 2, 4, 64, 16, num_experts=4, experts_per_token=2).text, 2, "cudnn causal", (4, 4)),
    ],
    ids=["gpt", "bert", "grouped", "experts"],
)
def test_models_by_name(function, number, kernel, heads):
    traced = trace(function, batch=2)
    assert attention_of(traced).by_pattern == number
    model = model_of_step(traced, len(traced.marks) or 2, attention="fused")
    ahead, back = records(model)
    assert [record.kernel for record in (*ahead, *back)] == [kernel] * number + [f"{kernel} backward"] * number
    for record in ahead:
        assert record.input_shapes[:2] == ((2, 16, heads[0], 8), (2, 16, heads[1], 8))
    assert attention_of(traced).note("fused", model) == f"attention: {number} found by pattern, priced as fused kernels"


def test_inference_has_forward_kernels_that_keep_nothing():
    traced = trace(functools.partial(transformer_forward, GPT(32, 2, 4, 64, 16)), batch=2)
    ahead, back = records(model_of_step(traced, 2, attention="fused"))
    assert [(record.kernel, record.written_bytes) for record in ahead] == [("cudnn causal", 2 * 16 * 32 * 2)] * 2
    assert back == []


def heads_of(weights, x, names="qkv"):
    return ((x @ weights[name]).reshape(BATCH, TOKENS, HEADS, HEAD) for name in names)


def cross_entropy(weights, x):
    labels = jax.nn.one_hot(jnp.zeros((BATCH, TOKENS), jnp.int32), HIDDEN)
    return -(labels * jax.nn.log_softmax(x @ weights["q"])).sum(-1).mean()


def classifier(weights, x):
    return jax.nn.softmax(x @ weights["q"]) @ weights["k"]


def gating(weights, x):
    gates = jax.nn.softmax(jnp.einsum("bsd,de->bse", x, weights["gates"]))
    return jnp.einsum("bse,besf->bsf", gates, jnp.einsum("bsd,edf->besf", x, weights["experts"]))


def linear(weights, x):
    query, key, value = heads_of(weights, x)
    states = jnp.einsum("bkhd,bkhe->bhde", jax.nn.softmax(key, 1), value)
    return jnp.einsum("bqhd,bhde->bqhe", jax.nn.softmax(query, -1), states)


def of_kernels(weights, x):
    query, key, value = heads_of(weights, x)
    scores = jnp.einsum("bqhd,bkhd->bhqk", jax.nn.elu(query) + 1, jax.nn.elu(key) + 1)
    return jnp.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), value)


def of_sigmoids(weights, x):
    query, key, value = heads_of(weights, x)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.sigmoid(jnp.einsum("bqhd,bkhd->bhqk", query, key)), value)


def over(weights, x, axis):
    query, key, value = heads_of(weights, x)
    weight = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key), axis=axis)
    return jnp.einsum("bhqk,bkhd->bqhd", weight, value)


def talking(weights, x):
    query, key, value = heads_of(weights, x)
    scores = jnp.einsum("bhqk,hg->bgqk", jnp.einsum("bqhd,bkhd->bhqk", query, key), weights["heads"])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def of_two_products(weights, x):
    query, key, value = heads_of(weights, x)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) + jnp.einsum("bqhd,qkd->bhqk", query, weights["places"])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)


def looked_at(weights, x):
    query, key, value = heads_of(weights, x)
    weight = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key))
    return jnp.einsum("bhqk,bkhd->bqhd", weight, value).sum() + (weight**2).sum()


OTHERS = {
    "cross entropy": cross_entropy, "classifier": classifier, "gating": gating, "linear": linear,
    "kernels": of_kernels, "sigmoids": of_sigmoids, "over heads": functools.partial(over, axis=1),
    "over queries": functools.partial(over, axis=2), "talking heads": talking, "two products": of_two_products,
    "scores used": looked_at,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_attention_or_more_than_that_stays_as_it_is(name):
    def function(batch_size):
        def step(weights, x):
            gradients = jax.grad(lambda weights: (OTHERS[name](weights, x) ** 2).mean())(weights)
            return jax.tree.map(lambda w, g: w - g, weights, gradients)

        shapes = dict.fromkeys("qkv", (HIDDEN, HIDDEN)) | {
            "heads": (HEADS, HEADS), "places": (TOKENS, TOKENS, HEAD), "gates": (HIDDEN, 3),
            "experts": (3, HIDDEN, HIDDEN),
        }  # fmt: skip
        weights = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in shapes.items()}
        return step, (weights, jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32))

    traced = trace(function, batch=BATCH)
    found = attention_of(traced)
    assert (found.by_pattern, found.by_call, found.note("fused")) == (0, 0, None)
    layered = cut_into_layers(traced, 1)
    assert with_attention(layered, "fused") is layered


def test_sentences_for_a_plan():
    found = attention_of(trace(attending(causal, blocks=2), batch=BATCH))
    assert found.note("plain") == (
        "attention: 2 found by pattern, priced as XLA compiles it, unfused; --attention fused prices fused kernels"
    )
    assert found.note("fused") == "attention: 2 found by pattern, priced as fused kernels"


class TestCalls:
    """Kernels that a model calls itself are fused with either setting."""

    @staticmethod
    def checked(attend, number=1, **options):
        traced = trace(attending(attend, blocks=2, **options), batch=BATCH)
        found = attention_of(traced)
        assert (found.by_pattern, found.by_call) == (0, 2)
        assert found.note("plain") == "attention: 2 found by call, priced as the fused kernels that they call"
        made = [records(model_of_step(traced, 2, attention=how)) for how in ("plain", "fused")]
        assert made[0] == made[1]
        ahead, back = made[0]
        assert (len(ahead), len(back)) == (2, 2 * number)
        return ahead[0], back[:number]

    @pytest.mark.parametrize("is_causal", [False, True])
    def test_cudnn(self, monkeypatch, is_causal):
        fused = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
        monkeypatch.setattr(fused, "check_cudnn_version", lambda: 8904)
        for check in ("check_compute_capability", "check_is_flash_attention"):
            monkeypatch.setattr(fused, check, lambda *_, **__: None)
        mask = fused.MaskType.CAUSAL if is_causal else fused.MaskType.NO_MASK

        def attend(query, key, value, weights, data):
            return fused.dot_product_attention(query, key, value, mask_type=mask)

        ahead, (back,) = self.checked(attend, dtype=jnp.bfloat16)
        size, rows = BATCH * TOKENS * HIDDEN * 2, BATCH * HEADS * TOKENS * 4
        flop = 4 * BATCH * HEADS * TOKENS * TOKENS * HEAD / (2 if is_causal else 1)
        assert (ahead.kernel, back.kernel) == (
            FusedAttention("cudnn", is_causal).text, FusedAttention("cudnn", is_causal, True).text
        )  # fmt: skip
        assert (ahead.flop, ahead.read_bytes, ahead.written_bytes) == (flop, 3 * size, size + rows)
        assert (back.flop, back.read_bytes, back.written_bytes) == (2.5 * flop, 5 * size + rows, 3 * size)
        assert ahead.input_shapes == ((BATCH, TOKENS, HEADS, HEAD),) * 3

    @pytest.mark.parametrize("is_causal", [False, True])
    def test_pallas_for_gpus(self, is_causal):
        pallas = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention")

        def attend(query, key, value, weights, data):
            return pallas.mha(query, key, value, None, causal=is_causal)

        ahead, (back,) = self.checked(attend, dtype=jnp.float16)
        assert (ahead.kernel, back.kernel) == (
            FusedAttention("cudnn", is_causal).text, FusedAttention("cudnn", is_causal, True).text
        )  # fmt: skip
        assert ahead.input_shapes == ((BATCH, TOKENS, HEADS, HEAD),) * 3
        assert back.flop == 2.5 * ahead.flop

    def test_pallas_for_tpus(self):
        """Its two backward kernels compute scores and the gradient of probabilities each, so seven products."""
        pallas = pytest.importorskip("jax.experimental.pallas.ops.tpu.flash_attention")

        def attend(query, key, value, weights, data):
            query, key, value = (x.transpose(0, 2, 1, 3) for x in (query, key, value))
            return pallas.flash_attention(query, key, value, causal=True).transpose(0, 2, 1, 3)

        ahead, back = self.checked(attend, 2, tokens=128, key_tokens=128)
        assert ahead.input_shapes == ((BATCH, 128, HEADS, HEAD),) * 3
        assert ahead.kernel == "cudnn causal"
        assert sum(record.flop for record in back) == 3.5 * ahead.flop

    def test_a_kernel_without_products_is_none_of_attention(self):
        pallas = pytest.importorskip("jax.experimental.pallas")

        def turned(query_ref, cosine_ref, sine_ref, out_ref):
            out_ref[...] = query_ref[...] * cosine_ref[...] + jnp.exp(query_ref[...]) * sine_ref[...]

        def step(query, cosine, sine):
            like = jax.ShapeDtypeStruct(query.shape, query.dtype)
            return pallas.pallas_call(turned, out_shape=like, name="attention_rotation")(query, cosine, sine)

        query = jax.ShapeDtypeStruct((BATCH, TOKENS, HEADS, HEAD), jnp.float32)
        traced = trace(lambda: (lambda weights, x: step(x, *weights), ([query, query], query)))
        assert attention_of(traced).note("plain") is None


def test_scores_are_neither_kept_nor_temporary():
    function = attending(causal, blocks=3)
    kept, fused = (model_of_step(trace(function, batch=BATCH), 3, attention=how) for how in ("plain", "fused"))
    scores, rows = BATCH * HEADS * TOKENS * TOKENS * 4, BATCH * HEADS * TOKENS * 4
    plainly, fusedly = (sorted(t.num_bytes for t in model.tensors if t.role == "activation") for model in (kept, fused))
    assert scores in plainly
    assert scores not in fusedly
    assert fusedly.count(rows) == 3
    for layer, other in zip(kept.layers, fused.layers, strict=True):
        assert other.forward_temporary_bytes < layer.forward_temporary_bytes
        assert other.backward_temporary_bytes <= layer.backward_temporary_bytes
        assert other.exchanged_bytes == layer.exchanged_bytes
    other = model_of_step(trace(function, batch=BATCH), 3)
    assert [t for t in other.tensors if t.role != "activation"] == [t for t in fused.tensors if t.role != "activation"]


@pytest.mark.parametrize("policy", ["nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"])
def test_blocks_that_are_computed_again(policy):
    wrap = functools.partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, policy))
    traced = trace(attending(causal, blocks=2, wrap=wrap), batch=BATCH)
    ahead, back = records(model_of_step(traced, 2, attention="fused"))
    assert [record.kernel for record in ahead] == ["cudnn causal"] * 2
    again = 0 if policy == "dots_saveable" else 1  # its output is kept
    assert [record.kernel for record in back] == [*["cudnn causal"] * again, "cudnn causal backward"] * 2
    layered = cut_into_layers(traced, 2)
    for x, y in zip(results(layered), results(with_attention(layered, "fused")), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


@pytest.mark.parametrize("wrap", [None, jax.checkpoint])
def test_layers_that_are_computed_again(wrap):
    """Each computes its forward kernel again, and nothing but the layers' operands is kept."""
    attend = causal if wrap is None else wrap(causal)
    traced = trace(attending(attend, blocks=3), batch=BATCH)
    plainly, fused = (model_of_step(traced, 3, remat="layer", attention=how) for how in ("plain", "fused"))
    ahead, back = records(fused)
    assert [record.kernel for record in ahead] == ["cudnn causal"] * 3
    assert [record.kernel for record in back] == ["cudnn causal", "cudnn causal backward"] * 3
    assert plainly.tensors == fused.tensors


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_scan_over_layers(is_checkpointed, num_layers):
    def function(batch_size):
        def block(x, weights):
            query, key, value = ((x @ weights[name]).reshape(-1, TOKENS, HEADS, HEAD) for name in "qkv")
            return x + mixed(query, key, value, past()).reshape(x.shape) @ weights["o"], None

        def step(weights, x):
            def loss(weights):
                return (jax.lax.scan(jax.checkpoint(block) if is_checkpointed else block, x, weights)[0] ** 2).mean()

            return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

        weights = {name: jax.ShapeDtypeStruct((3, HIDDEN, HIDDEN), jnp.float32) for name in "qkvo"}
        return step, (weights, jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32))

    traced = trace(function, batch=BATCH)
    assert attention_of(traced).by_pattern == 3
    ahead, back = records(model_of_step(traced, num_layers, attention="fused"))
    assert [record.kernel for record in ahead] == ["cudnn causal"] * 3
    assert [record.kernel for record in back].count("cudnn causal backward") == 3


def test_a_loop_over_shared_weights_stays_as_it_is():
    def function(batch_size):
        def step(weights, x):
            def loss(weights):
                def turn(x, _):
                    query, key, value = ((x @ weights[name]).reshape(-1, TOKENS, HEADS, HEAD) for name in "qkv")
                    return x + mixed(query, key, value).reshape(x.shape) @ weights["o"], None

                return (jax.lax.scan(turn, x, None, length=5)[0] ** 2).mean()

            return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

        weights = {name: jax.ShapeDtypeStruct((HIDDEN, HIDDEN), jnp.float32) for name in "qkvo"}
        return step, (weights, jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32))

    traced = trace(function, batch=BATCH)
    found = attention_of(traced)
    assert (found.by_pattern, found.in_loops) == (5, 5)
    model = model_of_step(traced, 1, attention="fused")
    assert records(model) == ([], [])
    assert "5 found by pattern, priced as fused kernels, but for 5 in loops" in found.note("fused", model)


def test_a_mask_that_all_layers_share_is_gone_if_it_is_causal_alone():
    """It is made before the first layer; padding makes it depend on the batch."""

    def function(batch_size, is_padded):
        def step(weights, data):
            def loss(weights):
                mask = nn.make_causal_mask(jnp.ones((batch_size, TOKENS)))
                if is_padded:
                    mask = nn.combine_masks(mask, nn.make_attention_mask(data["there"], data["there"]))
                x = jnp.tanh(data["x"])
                for each in weights:
                    query, key, value = ((x @ each[name]).reshape(-1, TOKENS, HEADS, HEAD) for name in "qkv")
                    x = x + nn.dot_product_attention(query, key, value, mask=mask).reshape(x.shape) @ each["o"]
                return (x**2).mean()

            return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

        weights = [{name: jax.ShapeDtypeStruct((HIDDEN, HIDDEN), jnp.float32) for name in "qkvo"} for _ in range(3)]
        x = jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32)
        return step, (weights, {"x": x, "there": jax.ShapeDtypeStruct((batch_size, TOKENS), jnp.bool_)})

    size = BATCH * TOKENS * HEADS * HEAD * 4
    for is_padded, mask in ((False, 0), (True, BATCH * TOKENS * TOKENS * 4)):
        traced = trace(functools.partial(function, is_padded=is_padded), batch=BATCH)
        layered = cut_into_layers(traced, 3)
        fused = with_attention(layered, "fused")
        ahead, back = records(model_of_step(traced, 3, attention="fused"))
        assert [record.kernel for record in (*ahead, *back)] == ["cudnn causal"] * 3 + ["cudnn causal backward"] * 3
        assert [record.read_bytes for record in ahead] == [3 * size + mask] * 3
        crossing = {var for jaxpr in (*fused.forward[1:], *fused.backward) for var in jaxpr.invars}
        assert any(var.aval.shape == (BATCH, 1, TOKENS, TOKENS) for var in crossing) == is_padded
        for x, y in zip(results(layered), results(fused), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


def test_frozen_blocks_have_forward_kernels():
    traced = trace(Transformer(32, 3, 4, 64, 16, train_last=1).text, batch=2)
    ahead, back = records(model_of_step(traced, "auto", attention="fused"))
    assert [record.kernel for record in ahead] == ["cudnn causal"] * 3
    assert [record.kernel for record in back] == ["cudnn causal backward"]


def test_scores_that_the_step_returns_are_kept():
    def function(batch_size):
        def step(weights, x):
            def loss(weights):
                query, key, value = heads_of(weights, x)
                weight = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key))
                return (jnp.einsum("bhqk,bkhd->bqhd", weight, value) ** 2).mean(), weight

            gradients, weight = jax.grad(loss, has_aux=True)(weights)
            return jax.tree.map(lambda w, g: w - g, weights, gradients), weight

        weights = {name: jax.ShapeDtypeStruct((HIDDEN, HIDDEN), jnp.float32) for name in "qkv"}
        return step, (weights, jax.ShapeDtypeStruct((batch_size, TOKENS, HIDDEN), jnp.float32))

    layered = cut_into_layers(trace(function, batch=BATCH), 1)
    assert with_attention(layered, "fused") is layered


def test_attention_in_two_layers_stays_as_it_is():
    def cut(query, key, value, weights, data):
        return mixed(query, key, value, softmax=lambda scores: mark_layer_end(jax.nn.softmax(scores)))

    traced = trace(attending(cut), batch=BATCH)
    assert len(traced.marks) == 2
    model = model_of_step(traced, "auto", attention="fused")
    assert records(model) == ([], [])
    assert attention_of(traced).note("fused", model).endswith("but for 1 in loops, or of which no layer has all")


def test_plain_attention_is_left_as_it_is():
    layered = cut_into_layers(trace(attending(causal), batch=BATCH), 1)
    assert with_attention(layered, "plain") is layered
    with pytest.raises(ValueError, match="attention is 'flash', but must be one of"):
        with_attention(layered, "flash")
