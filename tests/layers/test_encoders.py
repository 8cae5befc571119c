"""T5 and ViT: their published parameters, what they compute, and their layers, of which many take the encoder's result.

What they compute is written out here once more, in double precision, head by head.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.costs.interstage import CutBytes
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import is_marked, known_name, model_size, num_parameters, transformer_size
from alpa_dejavu.layers.models._encoders import t5_logits, t5_shapes, vit_logits, vit_shapes
from alpa_dejavu.layers.models._sizes import T5, ViT
from alpa_dejavu.sharding import model_of_step

PUBLISHED = {
    "t5-small": 60_506_624,  # Hugging Face, T5ForConditionalGeneration of google-t5/t5-small, and so on
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
    "vit-b16": 86_567_656,  # torchvision, vit_b_16 and vit_l_16
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,  # timm, vit_huge_patch14_224 with 1000 classes
}


def t5_parameters(size):
    attention = 4 * size.hidden * size.num_heads * size.head_size + size.hidden
    fed = (3 if size.gated else 2) * size.hidden * size.feed_forward + size.hidden
    blocks = size.num_blocks * (attention + fed) + size.decoder_blocks * (2 * attention + fed)
    tables = (1 if size.tied else 2) * size.vocabulary * size.hidden + 2 * 32 * size.num_heads
    return tables + blocks + 2 * size.hidden


def vit_parameters(size):
    hidden, wide = size.hidden, size.feed_forward
    block = 4 * (hidden * hidden + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
    patches = 3 * size.patch**2 * hidden + hidden + ((size.image // size.patch) ** 2 + 2) * hidden
    return patches + size.num_blocks * block + 2 * hidden + size.classes * (hidden + 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    size = model_size(name)
    by_hand = (t5_parameters if isinstance(size, T5) else vit_parameters)(size)
    assert num_parameters(name) == by_hand == PUBLISHED[name]


def drawn(shapes):
    rng = np.random.default_rng(0)
    return [{name: rng.normal(0, 0.3, shape) for name, shape in group.items()} for group in shapes]


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attended(x, source, w, kind, heads, bias, scale, biased):
    def product(name, y):
        return y @ w[f"{kind}_{name}"] + (w[f"{kind}_{name}_bias"] if biased else 0)

    query, key, value = product("query", x), product("key", source), product("value", source)
    parts = []
    for head in range(heads):
        own = np.s_[:, head * query.shape[1] // heads : (head + 1) * query.shape[1] // heads]
        parts.append(softmax(query[own] @ key[own].T / scale + (0 if bias is None else bias[head])) @ value[own])
    return product("out", np.concatenate(parts, 1))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def bucket(ahead, causal):
    """The published rule, for one distance: 32 buckets, and 128 tokens as the largest distance."""
    number, buckets = 0, 32
    if not causal:
        buckets //= 2
        number = buckets if ahead > 0 else 0
    distance = max(-ahead, 0) if causal else abs(ahead)
    if distance < buckets // 2:
        return number + distance
    share = np.log(distance / (buckets // 2)) / np.log(128 / (buckets // 2))
    return number + min(buckets // 2 + int(share * (buckets - buckets // 2)), buckets - 1)


def t5_by_hand(size, groups, read, written):
    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def block(w, x, table, encoded=None):
        causal = encoded is not None
        rows = [[bucket(k - q, causal) for k in range(len(x))] for q in range(len(x))]
        bias = np.moveaxis(table[np.array(rows)], -1, 0) + (np.triu(np.full((len(x),) * 2, -1e9), 1) if causal else 0)
        y = norm(x, w["own_norm"])
        x = x + attended(y, y, w, "own", size.num_heads, bias, 1, False)
        if causal:
            x = x + attended(norm(x, w["cross_norm"]), encoded, w, "cross", size.num_heads, None, 1, False)
        y = norm(x, w["norm"])
        inner = gelu(y @ w["gate"]) * (y @ w["wide"]) if size.gated else np.maximum(y @ w["wide"], 0)
        return x + inner @ w["narrow"]

    first, *encoder = groups[: size.num_blocks + 1]
    between, *decoder, last = groups[size.num_blocks + 1 :]
    x, y = first["tokens"][read], first["tokens"][written]
    for w in encoder:
        x = block(w, x, first["distances"])
    encoded = norm(x, between["norm"])
    for w in decoder:
        y = block(w, y, between["distances"], encoded)
    y = norm(y, last["norm"])
    return y @ first["tokens"].T / np.sqrt(size.hidden) if size.tied else y @ last["head"]


@pytest.mark.parametrize("more", [{}, {"gated": True, "tied": False}])
def test_a_t5_computes_what_is_published(more):
    size = T5(16, 2, 2, 24, head_size=4, vocabulary=40, sequence=70, targets=5, decoder_blocks=1, **more)
    groups, rng = drawn(t5_shapes(size)), np.random.default_rng(1)
    batch = {"tokens": rng.integers(0, 40, (2, 70)), "targets": rng.integers(0, 40, (2, 5))}
    logits = t5_logits(size, groups, batch)
    for sample in range(2):
        expected = t5_by_hand(size, groups, batch["tokens"][sample], batch["targets"][sample])
        np.testing.assert_allclose(logits[sample], expected, atol=2e-3)


def test_a_vit_computes_what_is_published():
    size = ViT(16, 2, 4, patch=2, image=6, classes=5)
    groups = drawn(vit_shapes(size))
    images = np.random.default_rng(1).normal(size=(2, 6, 6, 3))
    first, *blocks, last = groups

    def norm(x, w, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[name] + w[f"{name}_shift"]

    computed = vit_logits(size, jax.tree.map(jnp.asarray, groups), jnp.asarray(images))
    for image, logits in zip(images, computed, strict=True):
        patches = [image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].reshape(-1) for i in range(3) for j in range(3)]
        x = np.array(patches) @ first["patches"].reshape(12, 16) + first["patches_bias"]
        x = np.concatenate([first["whole"][None], x]) + first["positions"]
        for w in blocks:
            y = norm(x, w, "own_norm")
            x = x + attended(y, y, w, "own", 4, None, 2, True)
            y = norm(x, w, "norm")
            x = x + gelu(y @ w["wide"] + w["wide_bias"]) @ w["narrow"] + w["narrow_bias"]
        np.testing.assert_allclose(logits, norm(x, last, "norm")[0] @ last["head"] + last["head_bias"], atol=2e-3)


BATCH, HIDDEN, READ, WRITTEN = 4, 64, 16, 8
TINY = f"t5:hidden={HIDDEN},blocks=2,heads=2,head_size=32,feed_forward=128,vocabulary=128,sequence={READ},targets=8"


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_each_block_of_a_decoder_takes_the_encoders_result(remat):
    """Layers are the embeddings, two blocks, the encoder's norm with embeddings, two blocks, and the head."""
    step = trace(TINY, batch=BATCH)
    model = model_of_step(step, "auto", remat=remat)
    assert model.num_layers == 7
    assert step.num_parameters == t5_parameters(T5(HIDDEN, 2, 2, 128, 32, 128, READ, WRITTEN))
    read, written = 2.0 * BATCH * READ * HIDDEN, 2.0 * BATCH * WRITTEN * HIDDEN
    passed = [t for t in model.tensors if (t.role, t.producer, t.num_bytes) == ("activation", 3, read)]
    assert [t.users for t in passed if 4 in t.users] == [(4, 5, 8, 9)]
    cuts = CutBytes.of(model)
    forward = [0, read, read, read, written + read, written + read, written]
    assert cuts.forward_bytes.tolist() == forward
    assert cuts.backward_bytes.tolist() == forward  # the gradient of the encoder's result is added up on the way back
    kept = ModelMemory.of(model).activations
    assert kept[4, 5] == kept[4, 4] + kept[5, 5] - read
    assert ModelMemory.of(model).layer_inputs[4, 5] == 2 * written + read


def test_work_is_that_of_both_sides_of_each_cross_attention():
    layers = model_of_step(trace(TINY, batch=BATCH), "auto").layers
    width, wide = HIDDEN * HIDDEN, HIDDEN * 128  # the heads together are as wide as the hidden state
    encoder = READ * (4 * width + 2 * wide) + 2 * READ**2 * HIDDEN
    own = WRITTEN * (4 * width + 2 * wide) + 2 * WRITTEN**2 * HIDDEN
    cross = WRITTEN * 2 * width + READ * 2 * width + 2 * WRITTEN * READ * HIDDEN
    expected = [0, encoder, encoder, 0, own + cross, own + cross, WRITTEN * HIDDEN * 128]
    assert [layer.forward.product_flop for layer in layers] == [2 * BATCH * products for products in expected]
    assert [layer.backward.product_flop for layer in layers] == [4 * BATCH * products for products in expected]


def test_texts_and_other_spellings_are_the_same_models():
    size = T5(512, 6, 8, 2048, decoder_blocks=2)
    assert size.text == "t5:hidden=512,blocks=6,heads=8,feed_forward=2048,decoder_blocks=2"
    assert T5.of_text(size.text) == size
    assert [known_name(name) for name in ("ViT-B16", "vit-b-16", "T5-3B")] == ["vit-b16", "vit-b16", "t5-3b"]
    assert is_marked(TINY)
    assert not is_marked("vit-b16")
    assert transformer_size("t5-small") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vit:hidden=16,blocks=2,heads=3", "vit: num_heads is 3, but must divide hidden, 16"),
        ("vit:hidden=16,blocks=2,heads=2,patch=15", "vit: patch is 15, but must divide image, 224"),
        ("t5:hidden=16,blocks=2,heads=2", "must say feed_forward, too; add them as feed_forward=N"),
        ("t5:hidden=16,blocks=2,heads=2,feed_forward=8,targets=0", "t5: targets is 0, but must be a whole number"),
        ("t5:hidden=16,blocks=200,heads=2,feed_forward=8", "t5: its blocks is 400, but must be at most 253"),
        ("bert:hidden=16,blocks=2,heads=2,width=8", "model has 'width=8', but must have one of hidden, blocks, heads"),
    ],
)
def test_sizes_that_there_are_not_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        known_name(text)
