"""The suites' models by name: their sizes are the evaluation's, and they do train."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import Transformer, forward_function, known_models, model_function, num_parameters
from alpa_dejavu.layers.models._sized import _logits, _normalised, _rotated, sized_forward
from alpa_dejavu.layers.models._sizes import GPT, T5, Kraken, MoE, ViT, WideResNet
from alpa_dejavu.layers.models._suites import SUITES
from alpa_dejavu.layers.models._training import TrainedGroups
from alpa_dejavu.layers.models._transformer import _activations, _two_best, transformer_forward, transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step
from alpa_dejavu.sharding import model_of_step


def transformer_parameters(size):
    """Alpa's count for a decoder whose embedding and head are two matrices, with learned positions."""
    h, width = size.hidden, size.hidden * (8 if isinstance(size, MoE) else 4)
    attention = h * 3 * h + 3 * h + h * h + h + 4 * h
    dense = 2 * h * width + width + h
    mixed = size.num_experts * 2 * h * width + h * size.num_experts if isinstance(size, MoE) else 0
    blocks = size.num_blocks * attention
    blocks += size.num_blocks * dense if not mixed else size.num_blocks // 2 * (dense + mixed)
    return blocks + size.vocabulary * (2 * h + 1) + size.sequence * h + 2 * h


def wresnet_parameters(size):
    count, before = 7 * 7 * 3 * size.channels + 2 * size.channels, size.channels
    for stage, num_blocks in enumerate(size.blocks):
        c = size.channels * 2**stage
        for n in range(num_blocks):
            shapes = [(1, before, c), (9, c, c * size.width), (1, c * size.width, 4 * c)]
            shapes += [(1, before, 4 * c)] if n == 0 else []
            count += sum(places * a * b + 2 * b for places, a, b in shapes)
            before = 4 * c
    return count + before * size.classes + size.classes


def kraken_parameters(size):
    """The count of the published code, whose head is the embedding, and whose linear layers and norms have biases."""
    d, wide = size.hidden, size.expansion * size.hidden
    way = (3 * d * d + 3 * d) + (d * d + d) + (d * wide + wide) + (wide * d + d) + 2 * 2 * d
    joined = size.ways * d * d + d if size.ways > 1 else 0
    return size.ways * size.num_blocks * way + (size.vocabulary + size.sequence) * d + joined + 2 * d


COUNTS = {WideResNet: wresnet_parameters, Kraken: kraken_parameters}


OTHERS = [name for name in known_models() if not isinstance(SUITES[name], (Transformer, T5, ViT))]


@pytest.mark.parametrize("name", [*OTHERS, "llama-7b"])
def test_parameters_are_the_architectures(name):
    size = SUITES[name]
    _, (state, _) = model_function(name)(8)
    parts = state if isinstance(size, (WideResNet, Transformer)) else [state]
    kept = [part.parameters for part in parts if isinstance(part, TrainedGroups)]
    counted = sum(leaf.size for leaf in jax.tree.leaves(kept))
    assert counted == num_parameters(name)
    known = PUBLISHED.get(name)
    assert counted == (COUNTS.get(type(size), transformer_parameters)(size) if known is None else known)


PUBLISHED = {
    "bert-base": 109_514_298,  # Hugging Face, BertForMaskedLM of bert-base-uncased; "110M" in the paper
    "bert-large": 335_174_458,  # the same of bert-large-uncased; "340M" in the paper
    "resnet-50": 25_557_032,  # torchvision, resnet50
    "llama-7b": 6_738_415_616,  # Hugging Face, Llama-2-7b
}


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in PUBLISHED])
def test_parameters_are_what_the_name_says(name):
    said = name.split("-")[1]
    said_count = float(said[:-1]) * {"m": 1e6, "b": 1e9}[said[-1]]
    size = SUITES[name]
    counted = COUNTS.get(type(size), transformer_parameters)(size)
    untied = 0 if type(size) in COUNTS else size.vocabulary * size.hidden
    assert (counted - untied) == pytest.approx(said_count, rel=0.12)


def test_a_wrong_name_lists_near_ones():
    with pytest.raises(ValueError, match=r"no model named 'gpt-1.4b'; did you mean .*'gpt-1.3b'"):
        model_function("gpt-1.4b")


def filled(tree, seed=0):
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            low = "labels" in jax.tree_util.keystr(path)
            return jnp.array(rng.integers(int(low), 8, leaf.shape), leaf.dtype)
        return jnp.array(rng.uniform(0, 0.1, leaf.shape) if leaf.ndim > 1 else np.ones(leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, tree)


@pytest.mark.parametrize(
    "size", [GPT(16, 1, 2, vocabulary=32, sequence=8), MoE(16, 2, 2, num_heads=2, vocabulary=32, sequence=8, group=16)]
)
def test_language_models_run(size):
    step, arguments = transformer_step(size, 4)
    state, batch = filled(arguments)
    after = jax.jit(step)(state, batch)
    assert jax.tree.map(lambda leaf: leaf.shape, after) == jax.tree.map(lambda leaf: leaf.shape, state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.parameters))
    assert any((a != b).any() for a, b in zip(after.parameters[1].values(), state.parameters[1].values(), strict=True))


def test_a_forward_step_gives_the_logits_that_the_loss_is_made_of():
    size = GPT(16, 1, 2, vocabulary=32, sequence=8)
    forward, arguments = transformer_forward(size, 4)
    parameters, batch = filled(arguments)
    expected = _activations(size, parameters, batch) @ parameters[-1]["head"] + parameters[-1]["head_bias"]
    np.testing.assert_allclose(forward(parameters, batch), expected[:, -1], atol=1e-2)


@pytest.mark.parametrize(
    ("name", "sequence", "message"),
    [
        ("wresnet-250m", None, "name is 'wresnet-250m', but must be that of a language model; take gpt-125m"),
        ("gpt-125m", 0, "sequence is 0, but must be at least 1"),
        ("kraken-125m-3", None, "did you mean 'kraken-125m-6'"),
        ("llama-4-8b", None, "did you mean 'llama-3-8b' .* Give another model by the path of its config.json"),
    ],
)
def test_a_forward_step_that_there_is_not(name, sequence, message):
    with pytest.raises(ValueError, match=message):
        forward_function(name, sequence)


def test_frozen_blocks_have_no_gradients_no_state_and_no_backward_pass():
    size = Transformer(16, 4, 2, 32, 8)
    sizes = size, dataclasses.replace(size, train_last=1)
    whole, last = (model_of_step(trace(one.text, batch=2), 6) for one in sizes)
    assert [layer.backward.flop.sum() > 0 for layer in last.layers] == [False] * 4 + [True] * 2
    assert [layer.backward.flop.sum() for layer in last.layers[-1:]] == [
        layer.backward.flop.sum() for layer in whole.layers[-1:]
    ]
    kept = {role: sum(t.num_bytes for t in last.tensors if t.role == role) for role in ("parameter", "gradient")}
    assert kept["parameter"] == 2 * size.num_parameters
    block = size.hidden * (2 + 4 * size.hidden + 3 * size.feed_forward)
    assert kept["gradient"] == 2 * (block + size.hidden + size.hidden * size.vocabulary)


def test_parameters_are_counted_as_they_are_traced():
    experts = {"num_experts": 4, "experts_per_token": 2, "shared_feed_forward": 16, "shared_gate": True}
    for changes in (
        experts, {"biases": "attention"}, {"biases": "feed_forward"}, {"biases": "all"},
        {"biases": "all", "gated": False}, {"precision": "float32"},
    ):  # fmt: skip
        size = Transformer(16, 2, 2, 32, 8, **changes)
        traced = trace(size.text, batch=2)
        assert traced.num_parameters == size.num_parameters
    _, ((_, trained), _) = model_function(size.text)(2)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(trained.parameters)} == {"float32"}
    assert trained.master is None


def test_positions_rotate_by_the_models_own_base_and_scaling():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 1, 16)), jnp.float32)
    plain, based, scaled = (
        _rotated(x, Transformer(16, 1, 1, 32, 64, **more))
        for more in ({}, {"rotary_base": 500_000}, {"rotary_base": 500_000, "rotary_scaling": 8.0})
    )
    half, positions = 8, np.arange(64)[:, None]
    for made, base in ((plain, 1e4), (based, 5e5)):
        angles = positions / base ** (np.arange(half) / half)
        turned = x[0, :, 0, :half] * np.cos(angles) - x[0, :, 0, half:] * np.sin(angles)
        np.testing.assert_allclose(made[0, :, 0, :half], turned, atol=1e-4)
    # Wavelengths above 8192 tokens are 8 times as long; those below a quarter of it stay.
    angles = positions / (5e5 ** (np.arange(half) / half))
    wavelengths = 2 * np.pi * 5e5 ** (np.arange(half) / half)
    long, short = wavelengths > 8192, wavelengths < 2048
    angles = np.where(long, angles / 8, angles)
    turned = x[0, :, 0, :half] * np.cos(angles) - x[0, :, 0, half:] * np.sin(angles)
    np.testing.assert_allclose(scaled[0, :, 0, :half][:, long | short], turned[:, long | short], atol=1e-4)
    assert long.any()
    assert short.any()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"train_last": 5}, "train_last is 5, but must be from 1 to the number of blocks, 4"),
        ({"num_blocks": 255}, "num_blocks is 255, but must be at most 254"),
        ({"num_blocks": 10**40}, "num_blocks is 1000.*, but must be at most 254"),
        ({"feed_forward": 10**400}, "feed_forward is 1000.*, but must be at most 16777216"),
        ({"hidden": 2**24, "vocabulary": 2**24}, "its number of parameters is .*, but must be at most"),
    ],
)
def test_what_no_plan_could_be_made_for_is_refused_before_any_work(sizes, said):
    with pytest.raises(ValueError, match=f"transformer: {said}"):
        Transformer(**{"hidden": 16, "num_blocks": 4, "num_heads": 2, "vocabulary": 32, "sequence": 8} | sizes)


@pytest.mark.parametrize("name", ["gpt-125m", "moe-380m", "kraken-125m-2", "gpt2-125m", "llama-7b"])
def test_a_forward_step_takes_no_gradient_and_computes_the_last_logits_only(name):
    step, (parameters, batch) = forward_function(name, sequence=64)(4)
    assert jax.eval_shape(step, parameters, batch).shape == (4, SUITES[name].vocabulary)
    traced = trace(forward_function(name, sequence=64), batch=4)
    assert not traced.training
    assert traced.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(parameters))


def test_a_forward_step_by_sizes_gives_the_logits_that_the_loss_is_made_of():
    """Those of each token but the last are those of a shorter prompt."""
    size = Transformer(16, 2, 4, 32, 8, kv_heads=2)
    forward, arguments = sized_forward(size, 4)
    groups, batch = filled(arguments)
    every = _logits(size, groups, _normalised(size, groups, batch["tokens"], lambda x: x))
    for tokens in (1, 5, 8):
        shorter = {"tokens": batch["tokens"][:, :tokens]}
        np.testing.assert_allclose(forward(groups, shorter), every[:, tokens - 1], atol=1e-2)
    with pytest.raises(ValueError, match="num_experts is 4, but must be 0 for inference"):
        sized_forward(dataclasses.replace(size, num_experts=4, experts_per_token=2), 4)


def test_embeddings_are_the_same_gathered_or_multiplied():
    updated = []
    for gathers in (False, True):
        step, arguments = transformer_step(GPT(16, 1, 2, vocabulary=32, sequence=8, gathers=gathers), 4)
        updated.append(jax.jit(step)(*filled(arguments)).parameters[0])
    for first, second in zip(*map(jax.tree.leaves, updated), strict=True):
        np.testing.assert_allclose(np.array(first, np.float32), np.array(second, np.float32), atol=1e-3)


@pytest.mark.parametrize("half", [False, True])
def test_image_classifiers_run(half):
    step, arguments = wresnet_step(WideResNet(8, 2, (1, 1), classes=8, image=32, half=half), 4)
    state, batch = filled(arguments)
    (trained, statistics), accuracy = jax.jit(step)(state, batch)
    assert 0 <= float(accuracy) <= 1
    assert jax.tree.structure((trained, statistics)) == jax.tree.structure(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(statistics))


def test_experts_places_are_limited():
    gates = jax.nn.softmax(jnp.array(np.random.default_rng(0).normal(size=(2, 16, 4))))
    combine = np.array(_two_best(gates))
    assert combine.shape == (2, 16, 4, 8)
    assert ((combine > 0).sum(axis=1) <= 1).all()
    assert ((combine > 0).sum(axis=(2, 3)) <= 2).all()
    assert (combine.sum(axis=(2, 3)) <= 1 + 1e-6).all()
