"""The models by name: facts about their sizes, from which the functions are made when they are asked for.

The sizes are those of Alpa's benchmark suites (`suite_manual_gpt.py`, `suite_manual_moe.py`, `suite_wresnet.py` of
Alpa 0.2.3), which are the ones of the paper's tables; gpt-13b is that of Brown et al., Language Models are Few-Shot
Learners, NeurIPS 2020, table 2.1.

bert-base and bert-large are those of Devlin et al., with the head that fills in words; resnet-50 is that of He et al.,
for the 1000 classes of ImageNet; the decoders that people train today are in `_decoders.py`.

Those of Kraken are its authors' (`training/configs` of github.com/rohan-bp/kraken); the last number is that of the
ways. Beside kraken-125m, -350m and -760m stand gpt2-125m, gpt2-350m and gpt2-760m: standard transformers with as many
layers and heads in all, of about as many parameters, which normalise, look up embeddings and end as Kraken does. Their
widths are those of the table of Brown et al. The models gpt-125m, gpt-350m and gpt-760m have the same widths, but are
those of Alpa: they normalise after the residual, multiply by one-hot vectors to look up embeddings, and have a head of
their own.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu.layers.models._decoders import DECODERS, SPELLINGS
from alpa_dejavu.layers.models._sizes import BERT, GPT, T5, Kraken, MoE, ViT, WideResNet
from alpa_dejavu.layers.models._transformer_size import Transformer

Size = GPT | MoE | WideResNet | Kraken | BERT | T5 | ViT | Transformer

SUITES: dict[str, Size] = {
    "gpt-125m": GPT(768, 12, 12),
    "gpt-350m": GPT(1024, 24, 16),
    "gpt-760m": GPT(1536, 24, 16),
    "gpt-1.3b": GPT(2048, 24, 32),
    "gpt-2.6b": GPT(2560, 32, 32),
    "gpt-6.7b": GPT(4096, 32, 32),
    "gpt-13b": GPT(5120, 40, 40),
    "gpt-15b": GPT(5120, 48, 40),
    "gpt-39b": GPT(8192, 48, 64),
    "gpt-76b": GPT(10240, 60, 80),
    "moe-380m": MoE(768, 8, 8),
    "moe-690m": MoE(768, 8, 16),
    "moe-1.3b": MoE(768, 16, 16),
    "moe-2.4b": MoE(1024, 16, 16),
    "moe-7.1b": MoE(1280, 16, 32),
    "moe-10b": MoE(1536, 16, 32),
    "moe-27b": MoE(2048, 16, 48),
    "moe-70b": MoE(2048, 32, 64),
    "wresnet-250m": WideResNet(160, 2),
    "wresnet-500m": WideResNet(224, 2),
    "wresnet-1b": WideResNet(320, 2),
    "wresnet-2b": WideResNet(448, 2),
    "wresnet-4b": WideResNet(640, 2),
    "wresnet-6.8b": WideResNet(320, 16),
    "wresnet-13b": WideResNet(320, 16, (3, 4, 23, 3)),
    "kraken-125m-2": Kraken(678, 12, 12, 2),
    "kraken-125m-4": Kraken(504, 12, 12, 4),
    "kraken-125m-6": Kraken(418, 12, 12, 6),
    "kraken-350m-2": Kraken(888, 24, 16, 2),
    "kraken-350m-4": Kraken(644, 24, 16, 4),
    "kraken-760m-4": Kraken(960, 24, 16, 4),
    "gpt2-125m": Kraken(768, 12, 12, 1, expansion=4),
    "gpt2-350m": Kraken(1024, 24, 16, 1, expansion=4),
    "gpt2-760m": Kraken(1536, 24, 16, 1, expansion=4),
    "bert-base": BERT(768, 12, 12),
    "bert-large": BERT(1024, 24, 16),
    "resnet-50": WideResNet(64, 1, classes=1000),
    "t5-small": T5(512, 6, 8, 2048),
    "t5-base": T5(768, 12, 12, 3072),
    "t5-large": T5(1024, 24, 16, 4096),
    "t5-3b": T5(1024, 24, 32, 16384, head_size=128),
    "t5-11b": T5(1024, 24, 128, 65536, head_size=128),
    "flan-t5-small": T5(512, 8, 6, 1024, gated=True, tied=False),
    "flan-t5-base": T5(768, 12, 12, 2048, gated=True, tied=False),
    "flan-t5-large": T5(1024, 24, 16, 2816, gated=True, tied=False),
    "flan-t5-xl": T5(2048, 24, 32, 5120, gated=True, tied=False),
    "flan-t5-xxl": T5(4096, 24, 64, 10240, gated=True, tied=False),
    "vit-b16": ViT(768, 12, 12),
    "vit-l16": ViT(1024, 24, 16),
    "vit-h14": ViT(1280, 32, 16, patch=14),
    **DECODERS,
}


_FAMILIES: dict[type, tuple[str, str]] = {
    Transformer: ("_sized", "sized"), WideResNet: ("_wresnet", "wresnet"), Kraken: ("_kraken", "kraken"),
    T5: ("_encoders", "t5"), ViT: ("_encoders", "vit"),
    BERT: ("_transformer", "bert"), GPT: ("_transformer", "transformer"), MoE: ("_transformer", "transformer"),
}  # fmt: skip
"""For each kind of sizes the module of its models, which imports jax, and how its functions' names begin there."""


def _of_family(size: Size, kind: str) -> Callable[..., Any]:
    """The function of a family's "step", "forward" pass or "shapes" of parameters, given its sizes."""
    module, name = _FAMILIES[type(size)]
    function = getattr(importlib.import_module(f"alpa_dejavu.layers.models.{module}"), f"{name}_{kind}")
    return functools.partial(function, size)


def _spelled(name: str) -> str:
    return re.sub(r"([a-z])-(?=\d)", r"\1", name.lower())


_BY_SPELLING = {_spelled(name): name for name in SUITES} | {_spelled(other): name for other, name in SPELLINGS.items()}


def known_name(name: str) -> str | None:
    """Returns the name of a known model that somebody writes in capitals, or without a dash ahead of a number, or by
    another name, and the full text that a text of sizes stands for; None if it isn't known.

    >>> [known_name("Gemma2-9B"), known_name("llama-2-7b"), known_name("module:function")]
    ['gemma-2-9b', 'llama-7b', None]
    >>> known_name("bert:heads=2,hidden=8,blocks=1,kinds=2")
    'bert:hidden=8,blocks=1,heads=2'
    """
    listed = _BY_SPELLING.get(_spelled(name))
    if listed is None and (size := _size_of_text(name)) is not None:
        return size.text
    return listed


def _size_of(name: str) -> Size | None:
    listed = _BY_SPELLING.get(_spelled(name))
    return _size_of_text(name) if listed is None else SUITES[listed]


def _size_of_text(name: str) -> T5 | ViT | BERT | Transformer | None:
    sizes = (kind.of_text(name) for kind in (Transformer, BERT, T5, ViT))
    return next((size for size in sizes if size is not None), None)


def transformer_size(name: str) -> Transformer | None:
    """Returns the sizes of the transformer that a model's name or text stands for; None if it stands for no transformer
    of equal blocks.

    A GPT of Alpa's evaluation is taken as one that is normalised before its attention and feed-forward layers, as other
    runtimes have it.
    """
    size = _size_of(name)
    if not isinstance(size, GPT) and not (isinstance(size, Kraken) and size.ways == 1):
        return size if isinstance(size, Transformer) else None
    same = size.hidden, size.num_blocks, size.num_heads, size.vocabulary, size.sequence
    own: dict[str, Any] = {}
    if isinstance(size, Kraken):
        own = {"feed_forward": size.expansion * size.hidden, "tied": True}
    return Transformer(*same, gated=False, rotary=False, rms_norm=False, biases="all", **own)


def tokens_of_sample(name: str) -> int | None:
    """Returns the tokens of a sample of the model that a name or text stands for; None where samples are no sequences,
    or the name is that of a function.

    >>> [tokens_of_sample("gpt-1.3b"), tokens_of_sample("wresnet-1b"), tokens_of_sample("module:function")]
    [1024, None, None]
    """
    return getattr(_size_of(name), "sequence", None)


def model_title(name: str) -> str:
    """Returns a short title for the model that a name or text stands for. Sizes as text are titled by the known model
    from which they differ in few fields, else by their number of parameters.

    >>> model_title(dataclasses.replace(SUITES["llama-7b"], sequence=8192).text)
    'llama-7b (sequence=8192)'
    >>> model_title(dataclasses.replace(SUITES["phi-3-mini"], sequence=1024).text)
    'phi-3-mini (sequence=1024)'
    >>> model_title(transformer_size("gpt-1.3b").text)
    'gpt-1.3b'
    >>> model_title("transformer:hidden=8,blocks=2,heads=2,vocabulary=16,sequence=4")
    'a transformer of 2,344 parameters'
    """
    size = Transformer.of_text(name)
    if size is None:
        return name or "a model"
    parts = _parts(size)
    transformers = {model: other for model in SUITES if (other := transformer_size(model)) is not None}
    nearest = [
        (model, [f"{field}={value}" for field, value in parts.items() if whole.get(field) != value])
        for model, other in transformers.items()
        # A window that is as long as the sample is none.
        if _parts(dataclasses.replace(other, sequence=size.sequence)).keys() <= parts.keys()
        for whole in [_parts(other)]
    ]
    model, changed = min(nearest, key=lambda pair: len(pair[1]), default=("", []))
    title = f"{model} ({', '.join(changed)})" if changed else model
    if not model or sum(part.split("=")[0] not in _TRAINING for part in changed) > _FEW or len(title) > _LONGEST:
        return f"a transformer of {units.many(size.num_parameters)} parameters"
    return title


def _parts(size: Transformer) -> dict[str, str]:
    return dict(part.split("=", 1) for part in size.text.split(":", 1)[1].split(","))


_FEW, _LONGEST = 3, 60
"""In so many fields a transformer may differ from a known one whose name it is titled by, beside how it is trained, and
so many characters such a title may have."""
_TRAINING = "sequence precision gather optimizer lora lora_targets frozen train_last imbalance capacity".split()


def is_marked(name: str) -> bool:
    """Returns whether the model that a name or text stands for marks where its layers end: at its blocks.

    >>> [is_marked("llama-7b"), is_marked("gpt-1.3b"), is_marked("module:function")]
    [True, False, False]
    """
    return isinstance(_size_of(name), (Transformer, T5))


def is_served(name: str) -> bool:
    """Returns whether the model that a name or text stands for may be planned for inference, as those that write a text
    on, token by token.

    >>> [is_served("llama-7b"), is_served("t5-base"), is_served("module:function")]
    [True, False, False]
    """
    size = _size_of(name)
    if isinstance(size, Transformer):
        return not size.untraced and not size.num_experts
    return isinstance(size, (GPT, MoE, Kraken))


def known_models() -> list[str]:
    """Returns the names of all known models, by family and by size."""
    return list(SUITES)


def model_function(name: str) -> Callable[[int], Any]:
    """Returns a known model's function by name, or that of the transformer whose sizes the name says: it takes a batch
    size and returns `(train_step, (state, batch))`, where state and batch are abstract arrays (`jax.ShapeDtypeStruct`).

    Raises:
        ValueError: there is no model of that name; near names are listed.
    """
    return _of_family(model_size(name), "step")


def forward_function(name: str | Kraken | Transformer, sequence: int | None = None) -> Callable[[int], Any]:
    """Returns the function of a language model's step without gradients, which reads prompts to their last token.

    It takes the number of prompts and returns `(forward_step, (parameters, batch))`, abstract arrays as those of
    `model_function`. The step returns the logits of the token after each prompt, shape (batch, vocabulary). Parameters
    and activations are in half precision. It is planned as inference.

    Args:
        name: the name of a language model that `known_models` lists, or the sizes of a Kraken or a transformer.
        sequence: the number of tokens in a prompt, which is also the number of learned positions; None: the model's.

    Raises:
        ValueError: there is no model of that name, it isn't a language model, or a sequence without tokens.
    """
    size = model_size(name) if isinstance(name, str) else name
    if isinstance(size, (WideResNet, BERT, T5, ViT)):
        raise ValueError(
            f"name is {name!r}, but must be that of a language model; take gpt-125m or another that `alpa-dejavu "
            "models` lists with serving"
        )
    if sequence is not None:
        if sequence < 1:
            raise ValueError(f"sequence is {sequence}, but must be at least 1; give the number of tokens in a prompt")
        size = dataclasses.replace(size, sequence=sequence)
    return _of_family(size, "forward")


def model_size(name: str) -> Size:
    """Returns the sizes of the model that a name or text stands for: its width, number of blocks and the like.

    Raises:
        ValueError: there is no model of that name; near names are listed.
    """
    size = _size_of(name)
    if size is None:
        close = difflib.get_close_matches(name.lower(), SUITES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "`alpa-dejavu models` lists all."
        raise ValueError(
            f"there is no model named {name!r}; {hint} Give another model by the path of its config.json, or as "
            "'module:function'."
        )
    return size


def num_parameters(name: str) -> int:
    """Returns the number of a known model's parameters.

    Raises:
        ValueError: there is no model of that name; near names are listed.
    """
    size = model_size(name)
    return size.num_parameters if isinstance(size, Transformer) else _elements(_of_family(size, "shapes")())


def _elements(tree: Any) -> int:
    """The elements of all arrays in nested lists and dictionaries of their shapes."""
    if isinstance(tree, (list, dict)):
        return sum(map(_elements, tree.values() if isinstance(tree, dict) else tree))
    return math.prod(getattr(tree, "shape", tree))
