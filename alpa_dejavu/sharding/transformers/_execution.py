"""How training frameworks run a transformer: what they fuse, in which precision they keep and send, and what they hold.

Each is data. The figures are read from the frameworks' sources and papers; none is fitted.

References:
    Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023.
    Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, PVLDB 16(12), 2023.
"""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import (
    ATTENTION,
    ATTENTION_LIBRARIES,
    EXPERT_SHARDED,
    EXPERT_TENSOR,
    MeshConfig,
    NoShardingError,
    checks,
)

PLAIN = ATTENTION[1]
"""The attention whose scores go through memory."""
ALL_TO_ALL, RING, _GATHERED = _CONTEXT = ("all_to_all", "ring", "all_gather")
_SELECTIVE = ("attention", "operators")


@final
@dataclasses.dataclass(frozen=True)
class Execution:
    """The way in which a training framework runs a transformer.

    Attributes:
        name: the framework's name.
        attention: the library of its fused attention, or "plain".
        sequence_parallel: whether tensor-parallel devices divide norms and residuals by tokens.
        weight_bytes, gradient_bytes, master_bytes: what it keeps of each parameter: the parameter, its gradient, and
            copies in single precision that it updates, if there are any, beside the optimizer's state.
        narrow_copies: how many copies in fewer bits it keeps beside the weights of products that are computed in these.
        narrow_operands: whether it keeps what such a product's gradient needs in these bits, too.
        gathered_bytes: of a parameter while ZeRO-3 has it whole.
        reduced_bytes: of a gradient while devices add it up.
        adds_in_place: whether products of weights' gradients add to what earlier micro-batches left in memory.
        logit_bytes: what it keeps of each logit at a time, the loss and its gradient included.
        logit_traffic_bytes: what it reads and writes of each logit, beside products.
        context: how devices that share a sample's tokens exchange keys and values: "all_to_all" gives each some heads
            of all tokens; "ring" passes them on while attention computes with those that are there; "all_gather" brings
            each all of them. By the latter two a device has an early and a late chunk of the tokens, so that causal
            masks leave all as much to do.
        blocks_ahead: of how many blocks it holds the whole parameters at a time under ZeRO-3.
        frees_activations: whether the outputs of norms and of activation functions are computed again for the backward
            pass, as compilers choose, and not kept.
        owns_matrices: whether an optimizer of whole matrices updates each on one device under ZeRO 2, and sends it on;
            else, and under ZeRO-3, each device gathers all of them, and computes all of the update.
        selective: what it computes again where that is "selective": "attention", whose scores are then not kept, or
            "operators", all but attention and every second product.
    """

    name: str
    attention: str = "cudnn"
    sequence_parallel: bool = True
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    master_bytes: float = 4.0
    narrow_copies: float = 0.0
    narrow_operands: bool = False
    gathered_bytes: float = 2.0
    reduced_bytes: float = 4.0
    adds_in_place: bool = True
    logit_bytes: float = 10.0
    logit_traffic_bytes: float = 16.0
    context: str = "ring"
    blocks_ahead: float = 2.0
    frees_activations: bool = False
    owns_matrices: bool = False
    selective: str = "attention"

    def __post_init__(self) -> None:
        checks.one_of(f"execution {self.name}", "attention", self.attention, (PLAIN, *ATTENTION_LIBRARIES))
        checks.one_of(f"execution {self.name}", "context", self.context, _CONTEXT)
        checks.one_of(f"execution {self.name}", "selective", self.selective, _SELECTIVE)

    @property
    def selects(self) -> bool:
        """Returns whether "selective" recomputation is another choice than none."""
        return self.selective == "operators" or self.attention == PLAIN

    def with_attention(self, choice: str) -> Execution:
        """Returns the same way with attention "fused" or "plain"; an empty choice leaves it as it is.

        Raises:
            ValueError: it is another choice.
        """
        if choice not in ("", *ATTENTION):
            raise ValueError(f"attention is {choice!r}, but must be one of {', '.join(map(repr, ATTENTION))}")
        if not choice or (choice == PLAIN) == (self.attention == PLAIN):
            return self
        return dataclasses.replace(self, attention=PLAIN if choice == PLAIN else "cudnn")

    def in_precision(self, precision: str) -> Execution:
        """Returns the same way for a transformer in a precision: in single precision there are no copies of parameters,
        and gradients and what is gathered are as wide as these; in float16 Megatron sums gradients in half precision,
        of which the optimizer has a copy in single precision.
        """
        if precision == "float16" and self.name == "megatron":
            return dataclasses.replace(self, gradient_bytes=2.0, master_bytes=8.0, reduced_bytes=2.0)
        if precision not in ("float32", "tf32"):
            return self
        return dataclasses.replace(
            self, weight_bytes=4.0, gradient_bytes=4.0, master_bytes=0.0, gathered_bytes=4.0, reduced_bytes=4.0,
            logit_bytes=max(self.logit_bytes, 12.0),
        )  # fmt: skip


_FULLY_SHARDED = Execution(
    "torchtitan", attention="flash2", weight_bytes=4.0, gradient_bytes=4.0, master_bytes=0.0, adds_in_place=False,
    frees_activations=True, selective="operators", context="all_gather",
)  # fmt: skip
_MEGATRON = Execution("megatron", narrow_copies=2.0, narrow_operands=True, owns_matrices=True)
EXECUTIONS = {
    way.name: way
    for way in (
        _MEGATRON,
        dataclasses.replace(_MEGATRON, name="nemo", gradient_bytes=2.0, reduced_bytes=2.0),
        _FULLY_SHARDED,
        dataclasses.replace(
            _FULLY_SHARDED, name="fsdp", logit_bytes=4.0, logit_traffic_bytes=10.0, frees_activations=False
        ),
        Execution(
            "deepspeed", attention="flash2", sequence_parallel=False, gradient_bytes=2.0, reduced_bytes=2.0,
            logit_bytes=12.0, logit_traffic_bytes=26.0, context="all_to_all",
        ),
        dataclasses.replace(_FULLY_SHARDED, name="maxtext", attention="cudnn"),
    )
}  # fmt: skip
"""By the framework's name. "megatron" is Megatron-LM with Transformer Engine, fused loss and distributed optimizer, and
sums gradients in single precision; Transformer Engine keeps weights in 8 bits as they are and transposed, from one
micro-batch to the next; "nemo" is the same as NeMo's recipes set it, with gradients in half precision;
"torchtitan" is FSDP2 with `torch.compile`; "fsdp" is PyTorch's FSDP operator by operator with a fused loss, as in
llm-foundry; "deepspeed" is ZeRO beside Hugging Face's models; "maxtext" is JAX on GPUs."""


def execution(name: str) -> Execution:
    """Returns how a training framework of a name runs transformers.

    Raises:
        ValueError: the name isn't known.
    """
    if name not in EXECUTIONS:
        raise ValueError(f"runtime is {name!r}, but must be one of {', '.join(map(repr, EXECUTIONS))}")
    return EXECUTIONS[name]


@final
@dataclasses.dataclass(frozen=True)
class DivisionDegrees:
    """The numbers of devices that divide a transformer in each way.

    Attributes:
        data: the data-parallel devices, those that share a sample's tokens among them.
        tensor, context, expert: the devices that share operators, a sample's tokens, and the experts.
        sharded: the data-parallel devices that share what ZeRO shares.
        zero: the ZeRO level.
        expert_tensor: the devices that share the products of one expert.
        expert_sharded: of the devices that have the same experts, those that share what ZeRO shares of them.
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    sharded: int = 1
    zero: int = 0
    expert_tensor: int = 1
    expert_sharded: int = 1

    @classmethod
    def of(cls, config: MeshConfig, size: Transformer, runs: Execution) -> DivisionDegrees:
        """Returns the degrees that a config gives a transformer as a framework runs it.

        Raises:
            NoShardingError: its heads, feed-forward layers, vocabulary, tokens or experts can't be divided so.
        """
        degrees = cls(
            config.data_parallel, config.tensor_parallel, config.context_parallel, config.expert_parallel,
            config.sharded or config.data_parallel, config.zero, config.ways(EXPERT_TENSOR),
            config.ways(EXPERT_SHARDED),
        )  # fmt: skip
        tensor = {"num_heads": size.num_heads, "feed_forward": size.feed_forward}
        if size.num_experts:
            dense = {"shared_feed_forward": size.shared_feed_forward, "dense_feed_forward": size.dense_feed_forward}
            tensor = {"num_heads": size.num_heads} | {name: width for name, width in dense.items() if width}
        needs = [(name, value, degrees.tensor, "tensor-parallel") for name, value in tensor.items()]
        context, tokens = degrees.context, ("sequence", size.sequence)
        if runs.context == ALL_TO_ALL:
            needs.append(("num_heads", size.num_heads, degrees.tensor * context, "tensor- and context-parallel"))
            needs.append((*tokens, context, "context-parallel"))
        elif context > 1:
            needs.append((*tokens, 2 * context, "chunks of context-parallel"))
        if degrees.expert > 1 or config.expert_tensor:
            needs.append(("num_experts", size.num_experts, degrees.expert, "expert-parallel"))
        if size.num_experts:
            needs.append(("feed_forward", size.feed_forward, degrees.expert_tensor, "expert-tensor-parallel"))
        keys = sorted((size.kv_heads, degrees.tensor))
        if keys[1] % keys[0]:
            needs.append(("kv_heads", size.kv_heads, degrees.tensor, "tensor-parallel"))
        for name, value, ways, kind in needs:
            if value % ways or not value:
                raise NoShardingError(
                    f"{name} is {value}, but must be divisible among {ways} {kind} devices; choose another number of "
                    "them"
                )
        return degrees

    @property
    def experts_apart(self) -> bool:
        """Returns whether devices form other groups for experts than for all other parameters."""
        return self.expert > 1 or self.expert_tensor != self.tensor

    def copies(self, experts: bool) -> int:
        """Returns how many groups of devices have the whole of what ZeRO shares, of experts or of all else."""
        if experts:
            return self.data * self.tensor // (self.expert * self.expert_tensor * self.expert_sharded)
        return self.data // self.sharded


ALONE = DivisionDegrees()
"""One device has all of it."""
