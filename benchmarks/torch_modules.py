"""Plans modules of PyTorch as published, and beside them the planner's own models of the same sizes.

    python benchmarks/torch_modules.py          # prints a table; 1 minute
    python benchmarks/torch_modules.py vit-l16  # one of them

It needs PyTorch and transformers, which `make torch` installs. Nothing is read from a cache. "core" are the seconds of
a core, also where the machine does something else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from alpa_dejavu import plan_model
from alpa_dejavu._util import units

CLUSTER = "dgx-h100"


def llama(batch_size: int) -> tuple[Any, Any]:
    """Returns Llama 2 with 7 billion parameters, and inputs with labels."""
    sizes = transformers.LlamaConfig(vocab_size=32000, max_position_embeddings=4096)
    tokens = torch.zeros(batch_size, 4096, dtype=torch.long)
    return transformers.LlamaForCausalLM(sizes), {"input_ids": tokens, "labels": tokens}


def qwen(batch_size: int) -> tuple[Any, Any]:
    """Returns Qwen 3 with 0.6 billion parameters, and inputs with labels."""
    sizes = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    tokens = torch.zeros(batch_size, 32768, dtype=torch.long)
    return transformers.Qwen3ForCausalLM(sizes), {"input_ids": tokens, "labels": tokens}


def vision(batch_size: int) -> tuple[Any, Any]:
    """Returns the large Vision Transformer, and images with labels."""
    sizes = transformers.ViTConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, num_labels=1000
    )  # fmt: skip
    images = torch.zeros(batch_size, 3, 224, 224, dtype=torch.bfloat16)
    labels = torch.zeros(batch_size, dtype=torch.long)
    return transformers.ViTForImageClassification(sizes), {"pixel_values": images, "labels": labels}


MODELS: dict[str, tuple[Callable[[int], tuple[Any, Any]], int]] = {
    "llama-2-7b": (llama, 64), "qwen3-0.6b": (qwen, 16), "vit-l16": (vision, 512),
}  # fmt: skip
"""Each by the name of the planner's own: the function, and the batch."""


def in_bfloat16(model: Callable[[int], tuple[Any, Any]]) -> Callable[[int], tuple[Any, Any]]:
    """Returns a model function whose module is on the meta device, in bfloat16."""

    def function(batch_size: int) -> tuple[Any, Any]:
        with torch.device("meta"):
            module, inputs = model(batch_size)
            return module.to(torch.bfloat16), inputs

    return function


def main() -> None:
    """Prints a row for each model's module, and for its name."""
    parser = argparse.ArgumentParser(description="Plans modules of PyTorch, and the planner's own models beside them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models of these names; all if there is none")
    names = parser.parse_args().names or list(MODELS)
    print(f"{'model':<22}{'step':>10}{'memory':>12}{'stages':>8}{'planned in':>12}{'core':>10}")
    for name in names:
        function, batch = MODELS[name]
        for label, model in ((f"{name} in PyTorch", in_bfloat16(function)), (name, name)):
            begin_s, begin_core_s = time.perf_counter(), time.process_time()
            plan = plan_model(model, CLUSTER, batch=batch, attention="fused", cache=False).plan
            took = [
                units.seconds(end_s) for end_s in (time.perf_counter() - begin_s, time.process_time() - begin_core_s)
            ]
            memory = units.size(max(stage.memory_bytes for stage in plan.stages))
            print(
                f"{label:<22}{units.seconds(plan.step_s):>10}{memory:>12}{len(plan.stages):>8}{took[0]:>12}{took[1]:>10}"
            )


if __name__ == "__main__":
    main()
