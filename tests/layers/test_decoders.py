"""The decoders by name: their parameters are those of their checkpoints, and tiny ones compute what numpy does."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.layers.models import Transformer, known_models, known_name, model_function, num_parameters
from alpa_dejavu.layers.models._decoders import DECODERS
from alpa_dejavu.layers.models._sized import _logits, _normalised, sized_shapes
from alpa_dejavu.layers.models._suites import _spelled
from alpa_dejavu.sharding.transformers import execution, transformer_model

PUBLISHED = {  # the elements of all tensors in the checkpoints that their authors have on Hugging Face
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824, "llama-3.3-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552, "mistral-nemo": 12_247_782_400,
    "mistral-small": 23_572_403_200, "mistral-large": 122_610_069_504, "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gemma-2-2b": 2_614_341_888, "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-3-mini": 3_821_079_552, "phi-3-medium": 13_960_238_080, "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2-lite": 15_706_484_224, "deepseek-v2": 235_741_434_880,
    "olmo-2-1b": 1_484_916_736, "olmo-2-7b": 7_298_617_344, "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936, "mpt-7b": 6_649_286_656,
}  # fmt: skip
WITH_IMAGES = {"gemma-3-4b": 4_300_079_472, "gemma-3-12b": 12_187_325_040, "gemma-3-27b": 27_432_406_640}
SIGLIP = 416_866_032
"""The parameters of Gemma 3's encoder of images, which the three have in common; 1152 wide."""
BY_HAND = {
    # MPT has no biases at all, and its head is the table.
    "mpt-30b": 50432 * 7168 + 48 * (12 * 7168**2 + 2 * 7168) + 7168,
    # Nemotron-4: no gate, keys of 8 heads, norms with a bias, a head of its own; the paper says 12.5 and 3.1 billion.
    "nemotron-4-15b": 2 * 256000 * 6144 + 32 * (2 * 6144**2 + 2 * 6144 * 1024 + 8 * 6144**2 + 4 * 6144) + 2 * 6144,
    # The paper says 331.6 and 9.4 billion.
    "nemotron-4-340b": 2 * 256000 * 18432
    + 96 * (2 * 18432**2 + 2 * 18432 * 8 * 192 + 8 * 18432**2 + 4 * 18432) + 2 * 18432,
    # DeepSeek-V3 as the card of its weights has it, without the block that predicts a further token; and that block:
    # latent attention, experts, a product of 2 x 7168 elements, three norms.
    "deepseek-v3": 671_026_419_200
    + (7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168)
    + (257 * 3 * 7168 * 2048 + 256 * 7168 + 256) + 2 * 7168**2 + 5 * 7168,
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_parameters_are_those_of_the_checkpoints(name):
    size = DECODERS[name]
    expected = PUBLISHED | BY_HAND | {one: count - SIGLIP - 1152 * (DECODERS[one].hidden + 1)
                                      for one, count in WITH_IMAGES.items()}  # fmt: skip
    assert num_parameters(name) == size.num_parameters == expected[name]
    assert Transformer.of_text(size.text) == size


@pytest.mark.parametrize("name", [name for name, size in DECODERS.items() if not size.untraced])
def test_traced_forms_have_as_many(name):
    size = DECODERS[name]
    assert sum(math.prod(shape) for group in sized_shapes(size) for shape in group.values()) == size.num_parameters


@pytest.mark.parametrize("name", DECODERS)
def test_layers_have_as_many_as_are_counted(name):
    size = DECODERS[name]
    work = transformer_model(size, execution("megatron"), 1).sharding.divided().work
    rows = -(-size.vocabulary // 128) * 128 - size.vocabulary  # that frameworks add
    added = rows * size.hidden * (1 if size.tied else 2)
    assert (
        sum(group.count for layer in range(size.num_layers) for group in work.parameters(layer)) - added
        == size.num_parameters
    )


def test_names_are_known_as_people_write_them():
    assert len({_spelled(name) for name in known_models()}) == len(known_models())
    written = "Llama-2-7B llama3-8b qwen-2.5-7b Qwen3-30B-A3B mixtral8x7b gemma2-9b phi4 DeepSeek-V3 olmo2-7b".split()
    names = "llama-7b llama-3-8b qwen2.5-7b qwen3-30b-a3b mixtral-8x7b gemma-2-9b phi-4 deepseek-v3 olmo-2-7b".split()
    assert list(map(known_name, written)) == names
    with pytest.raises(ValueError, match=r"no model named 'llama-3-9b'; did you mean 'llama-3-8b'"):
        model_function("llama-3-9b")


TINY = {"hidden": 16, "num_blocks": 4, "num_heads": 4, "vocabulary": 32, "sequence": 8, "precision": "float32"}
KINDS = {
    "gemma 2": {"kv_heads": 2, "head_size": 8, "window": 3, "global_every": 2, "norms": "sandwich", "tied": True,
                "attention_cap": 0.5, "logit_cap": 0.3, "activation": "gelu"},
    "gemma 3": {"head_size": 8, "window": 2, "global_every": 3, "qk_norm": True, "norms": "sandwich",
                "rotary_scaling": 8.0, "rotary_scaling_kind": "linear"},
    "olmo 2": {"norms": "post", "qk_norm": True, "wide_qk_norm": True, "kv_heads": 2},
    "mpt": {"rotary": False, "alibi": True, "rms_norm": False, "norm_bias": False, "gated": False, "tied": True},
    "nemotron 4": {"rotated": 2, "gated": False, "activation": "relu2", "rms_norm": False},
    "sinks": {"sinks": True, "window": 4, "kv_heads": 2, "biases": "attention"},
    "a longer table": {"rotary": False, "positions": 16, "gated": False},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_ones_compute_what_numpy_does_token_by_token(kind):
    size = Transformer(**TINY | KINDS[kind])
    assert not size.untraced
    rng = np.random.default_rng(0)
    groups = [
        {name: rng.normal(size=shape).astype(np.float32) / 2 for name, shape in group.items()}
        for group in sized_shapes(size)
    ]
    assert sum(array.size for group in groups for array in group.values()) == size.num_parameters
    tokens = rng.integers(0, 32, (2, 8))
    computed = _logits(size, groups, _normalised(size, groups, tokens, lambda x: x))
    expected = np.stack([logits_by_numpy(size, groups, sample) for sample in tokens])
    np.testing.assert_allclose(computed, expected, atol=2e-3, rtol=2e-3)


def logits_by_numpy(size, groups, tokens):
    x = np.array([groups[0]["tokens"][token] for token in tokens], np.float64)
    if "positions" in groups[0]:
        x += groups[0]["positions"][: len(tokens)]

    def norm(group, name, x):
        if name not in group:
            return x
        x = x if size.rms_norm else x - x.mean(-1, keepdims=True)
        scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * group[name]
        return scaled + group.get(f"{name}_shift", 0)

    def activation(x):
        return {
            "silu": lambda: x / (1 + np.exp(-x)), "relu2": lambda: np.maximum(x, 0) ** 2,
            "gelu": lambda: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        }[size.activation]()  # fmt: skip

    for number, block in enumerate(groups[1:-1]):
        local = size.window and not (size.global_every and number % size.global_every == size.global_every - 1)
        window = size.window if local else 8
        inner = norm(block, "attention_norm", x)
        mixed = attention_by_numpy(size, block, inner, window) @ block["out"] + block.get("out_bias", 0)
        x = x + norm(block, "attention_norm_behind", mixed)
        inner = norm(block, "norm", x)
        wide = inner @ block["wide"]
        wide = activation(inner @ block["gate"]) * wide if size.gated else activation(wide)
        x = x + norm(block, "norm_behind", wide @ block["narrow"])
    logits = norm(groups[-1], "norm", x) @ (groups[0]["tokens"].T if size.tied else groups[-1]["head"])
    return size.logit_cap * np.tanh(logits / size.logit_cap) if size.logit_cap else logits


def attention_by_numpy(size, block, x, window):
    head, shared = size.head_size, size.num_heads // size.kv_heads
    rms = lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)  # noqa: E731
    whole = {name: x @ block[name] + block.get(f"{name}_bias", 0) for name in ("query", "key", "value")}
    if size.wide_qk_norm:
        whole |= {name: rms(whole[name]) * block[f"{name}_scale"] for name in ("query", "key")}
    mixed = []
    for h in range(size.num_heads):
        query = whole["query"][:, h * head : (h + 1) * head]
        key, value = (whole[name][:, h // shared * head : (h // shared + 1) * head] for name in ("key", "value"))
        if size.qk_norm and not size.wide_qk_norm:
            query, key = rms(query) * block["query_scale"], rms(key) * block["key_scale"]
        if size.rotary:
            query, key = turned(query, size), turned(key, size)
        rows = []
        for q in range(len(x)):
            seen = range(max(q - window + 1, 0), q + 1)
            scores = np.array([query[q] @ key[k] / math.sqrt(head) for k in seen])
            if size.attention_cap:
                scores = size.attention_cap * np.tanh(scores / size.attention_cap)
            if size.alibi:
                scores = scores - 2.0 ** (-8 * (h + 1) / size.num_heads) * np.array([q - k for k in seen])
            weights = np.exp(scores) / (np.exp(scores).sum() + (np.exp(block["sinks"][h]) if size.sinks else 0))
            rows.append(weights @ value[seen.start : seen.stop])
        mixed.append(rows)
    return np.concatenate(mixed, axis=-1)


def turned(x, size):
    width = size.rotated or size.head_size
    x = x.copy()
    for position, row in enumerate(x):
        for pair in range(width // 2):
            angle = position / 10000 ** (2 * pair / width)
            angle /= size.rotary_scaling if size.rotary_scaling_kind == "linear" else 1
            low, high = row[pair], row[pair + width // 2]
            row[pair] = low * math.cos(angle) - high * math.sin(angle)
            row[pair + width // 2] = high * math.cos(angle) + low * math.sin(angle)
    return x


def test_blocks_without_experts_stand_between_those_with():
    size = Transformer(
        **TINY, num_experts=4, experts_per_token=2, experts_every=2, dense_blocks=2, dense_feed_forward=48
    )
    step, arguments = model_function(size.text)(2)
    _, trained = arguments[0]
    assert sum(leaf.size for leaf in jax.tree.leaves(trained.parameters)) == size.num_parameters
    assert [("router" in group, "narrow" in group) for group in trained.parameters[1:-1]] == [
        (False, True), (False, True), (False, True), (True, False)
    ]  # fmt: skip
    jax.eval_shape(step, *arguments)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "phi-4-mini"])
def test_what_the_traced_form_has_not_is_refused_with_the_runtime_to_give(name):
    with pytest.raises(ValueError, match=r"but must be left out where JAX traces the model; give .*--runtime megatron"):
        model_function(name)(8)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"global_every": 2}, "global_every is 2, but must be 0, or above 1 with a window"),
        ({"wide_qk_norm": True}, "wide_qk_norm is yes, but must be no where qk_norm is"),
        ({"norm_bias": False}, "norm_bias is no, but must be yes where norms don't centre"),
        ({"norms": "middle"}, "norms is 'middle', but must be one of"),
        ({"activation": "tanh"}, "activation is 'tanh', but must be one of"),
        ({"logit_cap": -1.0}, "logit_cap is -1.0, but must be from 0"),
        ({"experts_every": 2}, "experts_every is 2, but must be 1"),
        ({"expert_biases": True}, "expert_biases is yes, but must be no without experts"),
        ({"rotated": 32}, "rotated is 32, but must be from 0 to 4"),
        ({"alibi": True}, "alibi is yes, but must be no where positions rotate"),
        ({"positions": 16}, "positions is 16, but must be 0, or at least the 8 tokens"),
        ({"rotary": False, "positions": 4}, "positions is 4, but must be 0, or at least the 8 tokens"),
        ({"predicted": 5}, "predicted is 5, but must be from 0 to the number of blocks"),
        ({"rotary_scaling_kind": "ntk"}, "rotary_scaling_kind is 'ntk', but must be one of"),
    ],
)
def test_sizes_that_contradict_each_other(sizes, said):
    with pytest.raises(ValueError, match=f"transformer.{{1,3}}{said}"):
        Transformer(**TINY | sizes)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={
        "kv_heads": st.sampled_from([1, 2]), "gated": st.booleans(), "rms_norm": st.booleans(), "tied": st.booleans(),
        "biases": st.sampled_from(["none", "qkv", "attention", "all"]), "qk_norm": st.booleans(),
        "wide_qk_norm": st.booleans(), "window": st.sampled_from([2, 16]), "global_every": st.sampled_from([2, 3]),
        "norms": st.sampled_from(["pre", "post", "sandwich"]), "norm_bias": st.booleans(), "sinks": st.booleans(),
        "rotary": st.booleans(), "alibi": st.booleans(), "positions": st.sampled_from([8, 32]),
        "rotated": st.sampled_from([2]), "predicted": st.sampled_from([1, 2]), "num_experts": st.just(4),
        "experts_per_token": st.just(2), "experts_every": st.sampled_from([1, 2]), "router_bias": st.booleans(),
        "expert_biases": st.booleans(), "dense_blocks": st.sampled_from([1, 3]), "dense_feed_forward": st.just(24),
        "shared_feed_forward": st.just(40), "shared_gate": st.booleans(),
    })
)  # fmt: skip
def test_all_counts_of_parameters_agree(fields):
    try:
        size = Transformer(**TINY | {"vocabulary": 128} | fields)
    except ValueError:
        return
    assert Transformer.of_text(size.text) == size
    work = transformer_model(size, execution("megatron"), 1).sharding.divided().work
    assert sum(group.count for layer in range(size.num_layers) for group in work.parameters(layer)) == pytest.approx(
        size.num_parameters
    )
    if not size.untraced:
        counted = sum(math.prod(shape) for group in sized_shapes(size) for shape in group.values())
        assert counted == size.num_parameters


def test_a_shorter_sample_has_the_whole_table_of_positions():
    size = dataclasses.replace(Transformer(**TINY, rotary=False, positions=8), sequence=4)
    assert size.num_parameters == Transformer(**TINY, rotary=False).num_parameters
