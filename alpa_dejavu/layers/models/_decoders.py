"""The decoders that people train, by name: the sizes that their published config.json have.

References:
    Touvron et al., Llama 2, 2023. Grattafiori et al., The Llama 3 Herd of Models, 2024. Qwen2.5 and Qwen3 Technical
    Reports, 2024 and 2025. Jiang et al., Mistral 7B, 2023; Mixtral of Experts, 2024. Gemma 2 and Gemma 3, 2024 and
    2025. Abdin et al., Phi-3 and Phi-4 Technical Reports, 2024. OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025.
    DeepSeek-V2 and DeepSeek-V3 Technical Reports, 2024. OLMo et al., 2 OLMo 2 Furious, 2024. MosaicML, MPT, 2023.
    Parmar et al., Nemotron-4 15B, 2024; Nemotron-4 340B Technical Report, 2024.
"""

from __future__ import annotations

from functools import partial

from alpa_dejavu.layers.models._transformer_size import Transformer

_LONG = 131072
_LLAMA_2 = partial(Transformer, vocabulary=32000, sequence=4096)
_LLAMA_3 = partial(Transformer, vocabulary=128256, sequence=_LONG, kv_heads=8, rotary_base=500_000, rotary_scaling=8.0)
_QWEN_2 = partial(Transformer, vocabulary=152064, sequence=_LONG, kv_heads=8, biases="qkv", rotary_base=1_000_000)
_SMALL_QWEN_2 = partial(_QWEN_2, vocabulary=151936, sequence=32768, kv_heads=2, tied=True)
_QWEN_3 = partial(
    Transformer, vocabulary=151936, sequence=32768, kv_heads=8, head_size=128, qk_norm=True, rotary_base=1_000_000
)
_QWEN_3_EXPERTS = partial(_QWEN_3, kv_heads=4, num_experts=128, experts_per_token=8)
_MISTRAL = partial(Transformer, vocabulary=32768, sequence=32768, kv_heads=8, rotary_base=1_000_000)
_MIXTRAL = partial(_MISTRAL, vocabulary=32000, num_experts=8, experts_per_token=2)
_GEMMA = partial(Transformer, tied=True, norms="sandwich", activation="gelu")
_GEMMA_2 = partial(
    _GEMMA, vocabulary=256000, sequence=8192, window=4096, global_every=2, attention_cap=50.0, logit_cap=30.0
)
_GEMMA_3 = partial(
    _GEMMA, vocabulary=262208, sequence=_LONG, window=1024, global_every=6, qk_norm=True, rotary_base=1_000_000,
    rotary_scaling=8.0, rotary_scaling_kind="linear",
)  # fmt: skip
_PHI_3 = partial(Transformer, vocabulary=32064, sequence=4096, window=2047)
_GPT_OSS = partial(
    Transformer, 2880, num_heads=64, vocabulary=201088, sequence=_LONG, kv_heads=8, head_size=64, feed_forward=2880,
    experts_per_token=4, biases="attention", window=128, global_every=2, sinks=True, router_bias=True,
    expert_biases=True, rotary_base=150_000, rotary_scaling=32.0, rotary_scaling_kind="yarn",
)  # fmt: skip
_DEEPSEEK = partial(
    Transformer, sequence=163840, head_size=128, latent_rank=512, rotary_size=64, value_size=128, rotary_scaling=40.0,
    rotary_scaling_kind="yarn",
)  # fmt: skip
_DEEPSEEK_2 = partial(_DEEPSEEK, vocabulary=102400, experts_per_token=6, dense_blocks=1)
_OLMO_2 = partial(
    Transformer, vocabulary=100352, sequence=4096, norms="post", qk_norm=True, wide_qk_norm=True, rotary_base=500_000
)
_MPT = partial(
    Transformer, vocabulary=50432, gated=False, rotary=False, alibi=True, rms_norm=False, norm_bias=False, tied=True
)
_NEMOTRON = partial(
    Transformer, vocabulary=256000, sequence=4096, kv_heads=8, gated=False, activation="relu2", rms_norm=False
)

DECODERS: dict[str, Transformer] = {
    "llama-7b": _LLAMA_2(4096, 32, 32, feed_forward=11008),
    "llama-13b": _LLAMA_2(5120, 40, 40, feed_forward=13824),
    "llama-70b": _LLAMA_2(8192, 80, 64, kv_heads=8, feed_forward=28672),
    "llama-3-8b": _LLAMA_3(4096, 32, 32, feed_forward=14336, sequence=8192, rotary_scaling=1.0),
    "llama-3-70b": _LLAMA_3(8192, 80, 64, feed_forward=28672, sequence=8192, rotary_scaling=1.0),
    "llama-3.1-8b": _LLAMA_3(4096, 32, 32, feed_forward=14336),
    "llama-3.1-70b": _LLAMA_3(8192, 80, 64, feed_forward=28672),
    "llama-3.1-405b": _LLAMA_3(16384, 126, 128, feed_forward=53248),
    "llama-3.2-1b": _LLAMA_3(2048, 16, 32, feed_forward=8192, tied=True, rotary_scaling=32.0),
    "llama-3.2-3b": _LLAMA_3(3072, 28, 24, feed_forward=8192, tied=True, rotary_scaling=32.0),
    "llama-3.3-70b": _LLAMA_3(8192, 80, 64, feed_forward=28672),
    "qwen2.5-0.5b": _SMALL_QWEN_2(896, 24, 14, feed_forward=4864),
    "qwen2.5-1.5b": _SMALL_QWEN_2(1536, 28, 12, feed_forward=8960, sequence=_LONG),
    "qwen2.5-3b": _SMALL_QWEN_2(2048, 36, 16, feed_forward=11008),
    "qwen2.5-7b": _QWEN_2(3584, 28, 28, kv_heads=4, feed_forward=18944),
    "qwen2.5-14b": _QWEN_2(5120, 48, 40, feed_forward=13824),
    "qwen2.5-32b": _QWEN_2(5120, 64, 40, feed_forward=27648),
    "qwen2.5-72b": _QWEN_2(8192, 80, 64, feed_forward=29568),
    "qwen3-0.6b": _QWEN_3(1024, 28, 16, feed_forward=3072, tied=True),
    "qwen3-1.7b": _QWEN_3(2048, 28, 16, feed_forward=6144, tied=True),
    "qwen3-4b": _QWEN_3(2560, 36, 32, feed_forward=9728, tied=True),
    "qwen3-8b": _QWEN_3(4096, 36, 32, feed_forward=12288),
    "qwen3-14b": _QWEN_3(5120, 40, 40, feed_forward=17408),
    "qwen3-32b": _QWEN_3(5120, 64, 64, feed_forward=25600, sequence=40960),
    "qwen3-30b-a3b": _QWEN_3_EXPERTS(2048, 48, 32, feed_forward=768),
    "qwen3-235b-a22b": _QWEN_3_EXPERTS(4096, 94, 64, feed_forward=1536, sequence=40960),
    "mistral-7b": _MISTRAL(4096, 32, 32, feed_forward=14336, vocabulary=32000, window=4096, rotary_base=10_000),
    "mistral-7b-v0.3": _MISTRAL(4096, 32, 32, feed_forward=14336),
    "mistral-nemo": _MISTRAL(5120, 40, 32, head_size=128, feed_forward=14336, vocabulary=_LONG, sequence=_LONG),
    "mistral-small": _MISTRAL(
        5120, 40, 32, head_size=128, feed_forward=32768, vocabulary=_LONG, rotary_base=100_000_000
    ),
    "mistral-large": _MISTRAL(12288, 88, 96, feed_forward=28672, sequence=_LONG),
    "mixtral-8x7b": _MIXTRAL(4096, 32, 32, feed_forward=14336),
    "mixtral-8x22b": _MIXTRAL(6144, 56, 48, feed_forward=16384, sequence=65536),
    "gemma-2-2b": _GEMMA_2(2304, 26, 8, kv_heads=4, head_size=256, feed_forward=9216),
    "gemma-2-9b": _GEMMA_2(3584, 42, 16, kv_heads=8, head_size=256, feed_forward=14336),
    "gemma-2-27b": _GEMMA_2(4608, 46, 32, kv_heads=16, head_size=128, feed_forward=36864),
    "gemma-3-1b": _GEMMA_3(
        1152, 26, 4, kv_heads=1, head_size=256, feed_forward=6912, vocabulary=262144, sequence=32768, window=512,
        rotary_scaling=1.0, rotary_scaling_kind="llama3",
    ),
    "gemma-3-4b": _GEMMA_3(2560, 34, 8, kv_heads=4, head_size=256, feed_forward=10240),
    "gemma-3-12b": _GEMMA_3(3840, 48, 16, kv_heads=8, head_size=256, feed_forward=15360),
    "gemma-3-27b": _GEMMA_3(5376, 62, 32, kv_heads=16, head_size=128, feed_forward=21504),
    "phi-3-mini": _PHI_3(3072, 32, 32, feed_forward=8192),
    "phi-3-medium": _PHI_3(5120, 40, 40, kv_heads=10, feed_forward=17920),
    "phi-4": Transformer(5120, 40, 40, 100352, 16384, kv_heads=10, feed_forward=17920, rotary_base=250_000),
    "phi-4-mini": Transformer(
        3072, 32, 24, 200064, _LONG, kv_heads=8, feed_forward=8192, tied=True, rotated=96, rotary_scaling=32.0,
        rotary_scaling_kind="longrope",
    ),
    "gpt-oss-20b": _GPT_OSS(num_blocks=24, num_experts=32),
    "gpt-oss-120b": _GPT_OSS(num_blocks=36, num_experts=128),
    "deepseek-v2-lite": _DEEPSEEK_2(
        2048, 27, 16, feed_forward=1408, num_experts=64, shared_feed_forward=2816, dense_feed_forward=10944
    ),
    "deepseek-v2": _DEEPSEEK_2(
        5120, 60, 128, feed_forward=1536, num_experts=160, shared_feed_forward=3072, dense_feed_forward=12288,
        query_rank=1536,
    ),
    "deepseek-v3": _DEEPSEEK(
        7168, 61, 128, 129280, feed_forward=2048, num_experts=256, experts_per_token=8, shared_feed_forward=2048,
        dense_blocks=3, dense_feed_forward=18432, query_rank=1536, router_bias=True, predicted=1,
    ),
    "olmo-2-1b": _OLMO_2(2048, 16, 16, feed_forward=8192),
    "olmo-2-7b": _OLMO_2(4096, 32, 32, feed_forward=11008),
    "olmo-2-13b": _OLMO_2(5120, 40, 40, feed_forward=13824),
    "olmo-2-32b": _OLMO_2(5120, 64, 40, kv_heads=8, feed_forward=27648),
    "mpt-7b": _MPT(4096, 32, 32, sequence=2048),
    "mpt-30b": _MPT(7168, 48, 64, sequence=8192),
    "nemotron-4-15b": _NEMOTRON(6144, 32, 48, feed_forward=24576, rotated=64),
    "nemotron-4-340b": _NEMOTRON(18432, 96, 96, feed_forward=73728, rotated=96),
}  # fmt: skip
"""Those without a number of their own are the base models; Gemma 3 is its language model, without images; DeepSeek-V3
has the block that predicts a further token, as it was trained."""
SPELLINGS = {f"llama-2-{size}": f"llama-{size}" for size in ("7b", "13b", "70b")} | {
    "mistral-7b-v0.1": "mistral-7b", "mistral-12b": "mistral-nemo",
    "mistral-small-24b": "mistral-small", "mistral-large-123b": "mistral-large",
}  # fmt: skip
"""Other names of some of them."""
