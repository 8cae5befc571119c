"""The optimizers and the precisions that a transformer by its sizes may be trained with, and the widths of what is
frozen, as data.

References:
    Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, ICML 2018.
    Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022; QLoRA: Efficient Finetuning of Quantized
    LLMs, NeurIPS 2023.
    Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023 (Lion).
    Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024.
    Micikevicius et al., FP8 Formats for Deep Learning, 2022; Rouhani et al., Microscaling Data Formats for Deep
    Learning, 2023; NVIDIA, Pretraining Large Language Models with NVFP4, 2025; DeepSeek-V3 Technical Report, 2024
    (blocks of 1 x 128 and 128 x 128).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

_MOMENT = 4.0
_IN_BLOCKS_OF_256 = 1 + 4 / 256
"""The bytes of a number of 8 bits with its share of a scale in single precision."""


@final
@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The state that an optimizer keeps of each parameter, beside a copy of it in single precision, and what its update
    does.

    Attributes:
        title: its name in words.
        matrix_bytes, table_bytes, vector_bytes: of a parameter of a block's products, of embeddings and the head, and
            of all others, as norms.
        factored: whether products and tables have a number in single precision for each row and column in place of one
            for each parameter.
        again_bytes: what an update reads and writes of a parameter of a block's product beside its gradient, state and
            copies.
        iterations: those of Newton and Schulz by which the update of a whole matrix is made orthogonal.
    """

    title: str
    matrix_bytes: float
    table_bytes: float
    vector_bytes: float
    factored: bool = False
    again_bytes: float = 0.0
    iterations: int = 0


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adamw": Optimizer("AdamW", *(2 * _MOMENT,) * 3),
    "adam": Optimizer("Adam", *(2 * _MOMENT,) * 3),
    "sgd": Optimizer("SGD with momentum", *(_MOMENT,) * 3),
    "lion": Optimizer("Lion", *(_MOMENT,) * 3),
    # The gradient is read once more for its statistics and once more for the norm of the update.
    "adafactor": Optimizer("Adafactor", 0.0, 0.0, _MOMENT, factored=True, again_bytes=8.0),
    "adam8bit": Optimizer("Adam with states of 8 bits", *(2 * _IN_BLOCKS_OF_256,) * 2, 2 * _MOMENT),
    # The update is written in half precision, read for its norm, and read again once it is orthogonal.
    "muon": Optimizer("Muon", _MOMENT, 2 * _MOMENT, 2 * _MOMENT, again_bytes=6.0, iterations=5),
}
"""By name, the usual one first; Muon has AdamW for all but the products of blocks."""


@final
@dataclasses.dataclass(frozen=True)
class Precision:
    """The dtypes that a transformer computes in.

    Attributes:
        title: its name in words.
        products: the dtype of the products of blocks; "float8_blocks": scaled by 128 elements, "float8_micro": by 32,
            in hardware.
        usual: the dtype of all else: attention, routers, norms, the head.
        operand_bytes: of an element of a product's operand that is cast to fewer bits, with its share of scales.
        reads: how often a cast reads what it casts: twice where it looks for the largest value of a tensor first.
    """

    title: str
    products: str
    usual: str
    operand_bytes: float = 0.0
    reads: float = 1.0


PRECISIONS: Mapping[str, Precision] = {
    "bfloat16": Precision("bfloat16", "bfloat16", "bfloat16"),
    "float16": Precision("float16", "float16", "float16"),
    "float32": Precision("single precision", "float32", "float32"),
    "tf32": Precision("single precision with products in TF32", "tf32", "float32"),
    "float8": Precision("bfloat16 with blocks' products in FP8, scaled by tensor", "float8", "bfloat16", 1.0),
    "fp8-blockwise": Precision(
        "bfloat16 with blocks' products in FP8, scaled by 128 elements", "float8_blocks", "bfloat16", 1 + 4 / 128
    ),
    "mxfp8": Precision("bfloat16 with blocks' products in MXFP8", "float8_micro", "bfloat16", 1 + 1 / 32),
    "nvfp4": Precision("bfloat16 with blocks' products in NVFP4", "float4", "bfloat16", 0.5 + 1 / 16, reads=2.0),
}
"""By name, the usual one first."""
SHORT_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8"}
"""Other names of some precisions."""
FROZEN_BYTES: Mapping[str, float] = {"bf16": 2.0, "8bit": 1.0, "4bit": 0.5 + 0.127 / 8}
"""The bytes of a frozen parameter of a block's product by its width: those of 4 bits with scales that are quantized
themselves, as in QLoRA. All other frozen parameters are as the model computes."""
LORA_TARGETS = ("attention", "all")
"""The products of blocks that get adapters."""
