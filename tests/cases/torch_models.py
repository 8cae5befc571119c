"""Small models of Hugging Face and torchvision as published, with random weights, and inputs for them."""

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch`")

if importlib.util.find_spec("torchvision"):
    try:
        import torchvision
    except RuntimeError:  # a wheel for CUDA, whose operators don't load without it, but must exist for the import
        _OPERATORS = torch.library.Library("torchvision", "DEF")
        for _name in ("nms", "qnms"):
            _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

_DECODER = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENCODER = {
    name: _DECODER[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}


def _texts(samples, **others):
    generator = torch.Generator().manual_seed(samples)
    words, labels = torch.randint(3, 64, (2, samples, 16), generator=generator)
    return {"input_ids": words, "labels": labels, **others}


def _masked(samples):
    mask = torch.ones(samples, 16, dtype=torch.long)
    mask[0, 12:] = 0
    return _texts(samples, attention_mask=mask)


def _images(samples):
    generator = torch.Generator().manual_seed(samples)
    return {"pixel_values": torch.randn(samples, 3, 32, 32, generator=generator), "labels": torch.arange(samples) % 2}


def _of(name, config, **sizes):
    def model():
        transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers aren't installed")
        return getattr(transformers, name)(getattr(transformers, config)(**sizes))

    return model


def _resnet():
    pytest.importorskip("torchvision", reason="torchvision isn't installed")
    return torchvision.models.resnet50()


FAMILIES = {
    "llama": (_of("LlamaForCausalLM", "LlamaConfig", **_DECODER), _texts, 2),
    "llama, padded": (_of("LlamaForCausalLM", "LlamaConfig", **_DECODER), _masked, 2),
    "qwen3": (_of("Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **_DECODER), _texts, 2),
    "mixtral": (_of("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **_DECODER), _texts, 2),
    "gpt2": (
        _of("GPT2LMHeadModel", "GPT2Config", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32,
            bos_token_id=1, eos_token_id=2),
        _texts, 2,
    ),
    "bert": (_of("BertForMaskedLM", "BertConfig", vocab_size=64, max_position_embeddings=32, **_ENCODER), _masked, 2),
    "t5": (
        _of("T5ForConditionalGeneration", "T5Config", vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2,
            num_heads=4, decoder_start_token_id=0),
        _texts, 6,
    ),
    "vit": (_of("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **_ENCODER), _images, 2),
    "resnet50": (_resnet, lambda samples: _images(samples)["pixel_values"], 0),
}  # fmt: skip
"""Each family's model, a function to its inputs from a number of samples, and how much attention it has."""


def family(name, samples=2):
    """A family's model, without dropout, and inputs for it."""
    torch.manual_seed(0)
    model, inputs, _ = FAMILIES[name]
    return model().eval(), inputs(samples)
