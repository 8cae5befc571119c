"""The models by name are those of Alpa's benchmarks: the same parameters, and the same products forward."""

import collections

import jax
import jax.numpy as jnp
import pytest
from alpa.model import bert_model, gpt_model, wide_resnet
from alpa.model import moe as moe_model

from alpa_dejavu.layers import trace
from alpa_dejavu.layers.features import layer_features
from alpa_dejavu.layers.models._sizes import GPT, MoE, WideResNet
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step

BATCH = 4
LANGUAGE = {"vocabulary": 128, "sequence": 32}


def language_settings(size, factor):
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "num_attention_heads": size.num_heads,
        "intermediate_size": factor * size.hidden,
        "num_hidden_layers": size.num_blocks,
        "max_position_embeddings": size.sequence,
        "tie_word_embeddings": False,
    }


def alpas(size):
    """Alpa's module of that size, as its benchmarks make it, and its abstract arguments."""
    if isinstance(size, WideResNet):
        module = wide_resnet.get_wide_resnet(50, size.width, size.channels, size.classes, jnp.float32)
        return module, [jax.ShapeDtypeStruct((BATCH, size.image, size.image, 3), jnp.float32)]
    tokens = [jax.ShapeDtypeStruct((BATCH, size.sequence), jnp.int32)] * 4
    if isinstance(size, MoE):
        config = moe_model.MoEConfig(
            **language_settings(size, 8), expert_group_size=size.group, expert_number=size.num_experts
        )
        return moe_model.FlaxMoEForLMModule(config, dtype=jnp.float16), tokens
    config = bert_model.BertConfig(**language_settings(size, 4), type_vocab_size=0)
    return gpt_model.FlaxGPTForLMModule(config, dtype=jnp.float16), tokens


def ours(size):
    return (wresnet_step if isinstance(size, WideResNet) else transformer_step)(size, BATCH)


SIZES = [
    GPT(64, 2, 4, **LANGUAGE),
    MoE(64, 4, 8, num_heads=4, group=64, **LANGUAGE),
    WideResNet(8, 2, classes=16, image=64),
]


@pytest.mark.parametrize("size", SIZES, ids=["gpt", "moe", "wresnet"])
def test_parameters_and_products(size):
    module, arguments = alpas(size)
    variables = jax.eval_shape(module.init, jax.random.PRNGKey(0), *arguments)
    step, (state, batch) = ours(size)
    trained = state[0] if isinstance(size, WideResNet) else state
    assert shapes(trained.parameters) == shapes(variables["params"])

    def forward(variables, *arguments):
        return module.apply(variables, *arguments, mutable=["batch_stats"])

    jaxpr = jax.make_jaxpr(forward)(variables, *arguments).jaxpr
    loss = trace(lambda: (step, (state, batch))).loss
    assert product_flop(loss) == pytest.approx(product_flop(jaxpr), rel=0.01)


def product_flop(jaxpr):
    return layer_features(jaxpr).operators.product_flop


def shapes(tree):
    """How many arrays there are of each shape, in whatever order of dimensions."""
    return collections.Counter(tuple(sorted(d for d in leaf.shape if d > 1)) for leaf in jax.tree.leaves(tree))
