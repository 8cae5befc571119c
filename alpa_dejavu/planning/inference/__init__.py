"""A language model, a cluster and the lengths of requests come in; a plan for serving goes out.

Prefill reads prompts to their first output token; it is a forward step at the prompts' length. Decoding makes one more
token of each sequence at a time; it reads all weights, and the cache of keys and values of all tokens before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.planning.inference._decoder import Decoder, decoder
    from alpa_dejavu.planning.inference._lengths import Lengths
    from alpa_dejavu.planning.inference._serve import serve_plan
    from alpa_dejavu.planning.inference.serving_plan import (
        OBJECTIVES,
        Phase,
        ServingMemory,
        ServingPlan,
        read_serving_plan,
        write_serving_plan,
    )

__all__ = [
    "OBJECTIVES", "Decoder", "Lengths", "Phase", "ServingMemory", "ServingPlan", "decoder", "read_serving_plan",
    "serve_plan", "write_serving_plan",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("Decoder", "decoder"), "_decoder"),
    "Lengths": "_lengths",
    "serve_plan": "_serve",
    **dict.fromkeys(("OBJECTIVES", "Phase", "ServingMemory", "ServingPlan"), "serving_plan"),
    **dict.fromkeys(("read_serving_plan", "write_serving_plan"), "serving_plan"),
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
