"""Parts and faults: against networks made by hand, and numpy's view of bits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.training.resilience import Axis, UnitFault, find_parts, kept_as, parts_of_axes
from alpa_dejavu.training.resilience.critical import judged_without
from alpa_dejavu.training.resilience.data_faults import DATA_FAULTS, DataFault
from alpa_dejavu.training.resilience.faults import FAULTS, Added, Flipped, Noisy, Removed
from alpa_dejavu.training.resilience.parts import drawn
from alpa_dejavu.training.resilience.testing import check_data_fault, check_fault

KEY = jax.random.PRNGKey(5)


def network(sizes=(3, 6, 5, 2), seed=0):
    draw = np.random.default_rng(seed)
    return [
        {"kernel": draw.standard_normal((a, b)).astype(np.float32), "bias": draw.standard_normal(b).astype(np.float32)}
        for a, b in itertools.pairwise(sizes)
    ]


def outputs(params, inputs, activation=jax.nn.sigmoid):
    for layer in params[:-1]:
        inputs = activation(inputs @ layer["kernel"] + layer["bias"])
    return inputs @ params[-1]["kernel"] + params[-1]["bias"]


def hidden(params):
    """The hidden neurons, with the rows of those who read them."""
    return parts_of_axes(params, "neurons", {
        f"hidden {n}": [Axis(f"{n}/kernel"), Axis(f"{n}/bias"), Axis(f"{n + 1}/kernel", axis=0)]
        for n in range(len(params) - 1)
    })  # fmt: skip


@pytest.mark.parametrize("fault", [*(FAULTS[name]() for name in FAULTS), Flipped(3, "bfloat16"), Flipped(None, "int8"),
                                   *(DATA_FAULTS[name]() for name in DATA_FAULTS)], ids=str)  # fmt: skip
def test_faults_are_sound(fault):
    if isinstance(fault, DataFault):
        check_data_fault(fault)
    else:
        check_fault(fault, changes_shapes=isinstance(fault, Added))


def test_what_isnt_sound_is_found():
    class All(UnitFault):
        def faulty(self, params, parts, hit, key):
            return jax.tree.map(jnp.zeros_like, params)

    class Fewer(DataFault):
        def faulty(self, inputs, targets, count, key):
            return inputs[count:], targets

    with pytest.raises(AssertionError, match="numbers change that no hit unit owns"):
        check_fault(All())
    with pytest.raises(AssertionError, match="19 inputs have 20 targets"):
        check_data_fault(Fewer())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 11), st.integers(0, 2**16))
def test_without_neurons_a_network_is_the_smaller_one(count, seed):
    params, inputs = network(seed=seed), np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
    parts = hidden(params)
    hit = np.asarray(drawn(parts, jax.random.PRNGKey(seed), count))
    made = Removed().faulty(params, parts, jnp.asarray(hit), KEY)
    first, second = ~hit[:6], ~hit[6:]
    smaller = [
        {"kernel": params[0]["kernel"][:, first], "bias": params[0]["bias"][first]},
        {"kernel": params[1]["kernel"][first][:, second], "bias": params[1]["bias"][second]},
        {"kernel": params[2]["kernel"][second], "bias": params[2]["bias"]},
    ]
    np.testing.assert_allclose(outputs(made, inputs), outputs(smaller, inputs), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["float32", "float16", "bfloat16", "int8"]), st.integers(0, 31), st.integers(0, 2**16))
def test_flipped_bits_are_those_of_numpys_view(dtype, bit, seed):
    values = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    kept = np.asarray(kept_as([values], dtype)[0])
    bits = {"float32": 32, "int8": 8}.get(dtype, 16)
    bit %= bits
    parts = find_parts([values], "weights", only="0")
    hit = drawn(parts, jax.random.PRNGKey(seed), 20)
    found = np.asarray(Flipped(bit, dtype).faulty([kept], parts, hit, KEY)[0])
    if dtype == "bfloat16":
        wanted = (kept.view(np.uint32) ^ np.uint32(1 << (bit + 16))).view(np.float32)
    elif dtype == "int8":
        scale = np.float32(np.abs(kept).max()) / np.float32(127)
        whole = np.round(kept / scale).astype(np.int8).view(np.uint8) ^ np.uint8(1 << bit)
        wanted = whole.view(np.int8) * scale
    else:
        unsigned = f"uint{bits}"
        wanted = (kept.astype(dtype).view(unsigned) ^ np.array(1 << bit, unsigned)).view(dtype).astype(np.float32)
    wanted = np.where(np.asarray(hit), wanted, kept)
    np.testing.assert_allclose(found, wanted, rtol=1e-6 if dtype == "int8" else 0)


def test_kinds_of_parts_by_the_conventions_of_flax():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            return x + nn.Dense(8)(nn.relu(nn.Dense(16)(x)))

    inputs = jnp.ones((2, 5, 8))
    params = Block().init(KEY, inputs)
    heads = find_parts(params, "heads")
    assert (heads.groups, heads.sizes) == (("params/MultiHeadDotProductAttention_0",), (4,))
    assert find_parts(params, "neurons", only="params/Dense_*").sizes == (8, 16)
    assert "params/LayerNorm_0" in find_parts(params, "layers").groups
    assert find_parts(params, "weights").count == sum(leaf.size for leaf in jax.tree.leaves(params))
    conv = {"kernel": np.zeros((3, 3, 2, 7)), "bias": np.zeros(7)}
    kernel = find_parts({"conv": conv, "out": np.zeros((3, 3))}, "filters")
    assert (kernel.groups, kernel.sizes, kernel.name(3)) == (("conv",), (7,), "conv[3]")
    assert find_parts({"steps": np.zeros((2, 2), int), "out": np.zeros((3, 2))}, "weights").groups == ("out",)
    # A lost head puts out nothing: what is left is the sum of the others' outputs.
    attention = params["params"]["MultiHeadDotProductAttention_0"]
    module = nn.MultiHeadDotProductAttention(num_heads=4)
    alone = [
        module.apply({"params": Removed().faulty(attention, find_parts({"a": attention}, "heads"),
                                                 jnp.arange(4) != head, KEY)}, inputs)
        for head in range(4)
    ]  # fmt: skip
    bias = attention["out"]["bias"]
    np.testing.assert_allclose(sum(alone) - 3 * bias, module.apply({"params": attention}, inputs), atol=1e-5)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: find_parts(network(), "neuron"), "kind is 'neuron', but must be one of neurons, .*did you mean 'neurons'"),
    (lambda: find_parts(network(), "heads"), "the model has no heads; its arrays are 0/bias"),
    (lambda: find_parts(network(), but="nowhere"), r"but has 'nowhere', but must be of paths that are there; the m"),
    (lambda: find_parts(network(), but="*"), "no neurons by only=None, but='\\*'"),
    (lambda: parts_of_axes(network(), "n", {"a": [Axis("0/kernels")]}), "leaf is '0/kernels', but must be one of"),
    (lambda: parts_of_axes(network(), "n", {"a": [Axis("0/bias", width=4)]}), "width is 4 for 1 units, but must"),
    (lambda: parts_of_axes(network(), "n", {"a": [Axis("0/bias"), Axis("1/bias")]}), r"is of \[6, 5\] units"),
    (lambda: Flipped(8, "int8"), "bit is 8, but must be one of 0..7"),
    (lambda: Flipped(0, "float8"), "dtype is 'float8', but must be one of 'float32'"),
    (lambda: Noisy(-1.0), "spread is -1.0, but must be a finite number of at least 0"),
    (lambda: hidden(network()).group("hidden 7"), "group is 'hidden 7', but must be one of hidden 0, hidden 1"),
])  # fmt: skip
def test_wrong_parts_and_faults_are_told(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def judged_outputs(apply_fn, params, inputs, fault, parts, hit):
    """What a model puts out with a fault, as `judged_without` sees it."""
    seen = {}
    data = inputs, jnp.zeros(len(inputs), int)

    def judge(outputs, targets):
        jax.debug.callback(lambda values: seen.update(values=values), outputs)
        return outputs.sum()

    judged_without(apply_fn, params, data, parts, [hit], faulty=fault, judge=judge)
    jax.effects_barrier()
    return np.asarray(seen["values"])


@pytest.mark.parametrize("activation", [jax.nn.sigmoid, jax.nn.gelu, jax.nn.softplus, jax.nn.silu, jnp.cos])
def test_removed_neurons_put_out_zero_whatever_their_activation(activation):
    params, inputs = network(), np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    parts = find_parts(params, but="2")
    hit = np.asarray(drawn(parts, KEY, 4))

    def apply_fn(params, inputs):
        return outputs(params, inputs, activation)

    made = judged_outputs(apply_fn, params, inputs, Removed(), parts, hit)
    values, kept = inputs, np.split(~hit, [6])
    for layer, there in zip(params, kept, strict=False):
        values = np.asarray(activation(values @ layer["kernel"] + layer["bias"])) * there
    np.testing.assert_allclose(made, values @ params[2]["kernel"] + params[2]["bias"], rtol=1e-4, atol=1e-5)


def test_removed_filters_and_layers_of_transposed_scanned_and_stacked_weights_put_out_zero():
    draw = np.random.default_rng(2)
    stacked = draw.standard_normal((3, 4, 4)).astype(np.float32)
    images = draw.standard_normal((2, 5, 5, 4)).astype(np.float32)
    numbers = ("NHWC", "HWIO", "NHWC")

    def apply_fn(params, inputs):
        made = jax.nn.sigmoid(jax.lax.conv_general_dilated(inputs, params["conv"], (1, 1), "SAME",
                                                           dimension_numbers=numbers)).mean(axis=(1, 2))  # fmt: skip
        made, _ = jax.lax.scan(lambda x, w: (jax.nn.sigmoid(x @ w), None), made, params["turns"])
        for n in range(3):
            made = jax.nn.sigmoid(made @ params["turns"][n])
        return jax.nn.sigmoid(made @ params["back"].T)

    params = {"conv": draw.standard_normal((3, 3, 4, 4)).astype(np.float32), "turns": stacked,
              "back": draw.standard_normal((4, 4)).astype(np.float32)}  # fmt: skip
    groups = {"conv": [Axis("conv")], "turns": [Axis("turns")], "back": [Axis("back", axis=0)]}
    parts = parts_of_axes(params, "neurons", groups)
    hit = np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], bool)
    made = judged_outputs(apply_fn, params, images, Removed(), parts, hit)
    keep = (~hit).reshape(3, 4)

    def by_hand(inputs):
        made = (jax.nn.sigmoid(jax.lax.conv_general_dilated(inputs, params["conv"], (1, 1), "SAME",
                               dimension_numbers=numbers)) * keep[0]).mean(axis=(1, 2))  # fmt: skip
        for n in (0, 1, 2, 0, 1, 2):
            made = jax.nn.sigmoid(made @ stacked[n]) * keep[1]
        return jax.nn.sigmoid(made @ params["back"].T) * keep[2]

    np.testing.assert_allclose(made, by_hand(images), rtol=1e-5)
    layer = find_parts(params, "layers", only="back")
    assert not judged_outputs(apply_fn, params, images, Removed(), layer, np.ones(1, bool)).any()


def test_weights_that_are_reshaped_before_their_product_are_refused_where_units_are_removed():
    params, inputs = {"w": np.ones((3, 2, 4), np.float32)}, np.ones((5, 3), np.float32)

    def apply_fn(params, inputs):
        return inputs @ params["w"].reshape(3, 8)

    with pytest.raises(ValueError, match=r"w is reshaped before its product.*give the fault 'zeroed'"):
        judged_outputs(apply_fn, params, inputs, "removed", find_parts(params), np.ones(4, bool))
    assert not judged_outputs(apply_fn, params, inputs, "zeroed", find_parts(params), np.ones(4, bool)).any()


def test_added_neurons_are_a_wider_network_that_is_the_same_where_none_is_hit():
    params, inputs = network(), np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    parts = hidden(params)
    none = Added().faulty(params, parts, jnp.zeros(11, bool), KEY)
    assert [layer["kernel"].shape for layer in none] == [(3, 12), (12, 10), (10, 2)]
    np.testing.assert_allclose(outputs(none, inputs), outputs(params, inputs), atol=1e-5)
    some = Added().faulty(params, parts, drawn(parts, KEY, 3), KEY)
    assert sum(int((layer["bias"] != 0).sum()) for layer in some[:-1]) == 11 + 3
    assert not np.allclose(outputs(some, inputs), outputs(params, inputs), atol=1e-3)
    with pytest.raises(ValueError, match="parts is weights, but must lie along axes to be added to"):
        Added().faulty(params, find_parts(params, "weights"), jnp.zeros(find_parts(params, "weights").count, bool), KEY)
