"""Tells from the name of an operator, a kernel or an HLO instruction what kind of work it is.

The names are PyTorch's operators, kernels of its and NVIDIA's libraries, Triton's and XLA's.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, TypeAlias, get_args

WorkKind: TypeAlias = Literal[
    "products", "grouped products", "attention", "norms and softmax", "element-wise", "optimizer", "copies", "untold",
    "dispatch", "exchanges", "waiting", "data",
]  # fmt: skip
"""Kinds of work. "dispatch" prepares other work, as views do; "untold" is what no name tells apart; "waiting" is for
other ranks; "data" loads samples. What comes first computes while what comes later may go on beside it.
"""
KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv", "barrier")
"""Kinds of exchanges by the names that they have everywhere."""

_PATTERNS: tuple[tuple[str, WorkKind], ...] = (
    (r"dataloader", "data"),
    (r"^autograd::engine|^torch::autograd|c10d::|_c10d_functional::(?!wait)|record_param_comms|fsdp::", "dispatch"),
    (r"nccl|gloo:|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all"
     r"|collective[-_]?permute|\bpsum\b", "exchanges"),
    (r"wait_tensor|rendezvous|^wait\b|wait for|barrier", "waiting"),
    (r"^optimizer\.step|multi_tensor_apply|fused_?adam|_foreach_|aten::_fused_(adam|sgd)|adamw?_kernel", "optimizer"),
    (r"flash|fmha|scaled_dot_product|sdpa|efficient_attention|attention_kernel|paged_attention", "attention"),
    (r"grouped_?(mm|gemm)|groupproblemshape|moe_gemm|ragged[-_]dot", "grouped products"),
    (r"^aten::(mm|addmm|bmm|baddbmm|addbmm|matmul_out|_scaled_mm|linear_out|mkldnn_linear|convolution_overrideable"
     r"|mkldnn_convolution|convolution_backward|_convolution|cudnn_convolution|_int_mm)$"
     r"|gemm|nvjet|xmma|cutlass|cublas|wgrad|dgrad|^dot(_general)?\b|^dot[._]|ynn_fusion|custom[-_]call.*matmul"
     r"|^convolution|fused_conv|^conv[._]", "products"),
    (r"layer_?norm|rms_?norm|batch_?norm|group_?norm|softmax|log_softmax|cross_entropy|nll_loss|triton_(red|per)_"
     r"|reduce_kernel|aten::(sum|mean|amax|amin|max|min|norm|var|std|logsumexp|cumsum|topk|sort|argmax|linalg_vector_norm)$"
     r"|^reduce[-_.\d]|reduce_fusion|^wrapped_reduce|^sort[._]", "norms and softmax"),
    (r"memcpy|memset|aten::(copy_|_to_copy|cat|_chunk_cat|stack|fill_|zero_|clone|contiguous|constant_pad_nd|split_with_sizes_copy"
     r"|_foreach_copy_)$|^(copy|concatenate|pad|slice|dynamic[-_]slice|dynamic[-_]update[-_]slice|transpose|broadcast"
     r"|wrapped_(transpose|copy|concatenate|broadcast|slice))\b|^(copy|transpose)[._]|catarray", "copies"),
    (r"^aten::(view|_unsafe_view|reshape|_reshape_alias|as_strided|t|transpose|permute|expand|expand_as|slice|select"
     r"|split|split_with_sizes|chunk|unsqueeze|squeeze|detach|detach_|alias|empty|empty_strided|empty_like|resize_|set_"
     r"|unbind|narrow|flatten|unflatten|ones_like|zeros_like|zeros|ones|new_empty|new_zeros|new_empty_strided"
     r"|result_type|item|_local_scalar_dense|is_nonzero|linear|matmul|einsum|lift_fresh|to|type_as|movedim"
     r"|_has_compatible_shallow_copy_type|record_stream|ones|random_|randint|set_data|broadcast_tensors|view_as"
     r"|contiguous|swapaxes|unsafe_split|pad|arange|layer_norm|cross_entropy_loss|embedding_backward)$"
     r"|^detach_?$|^autograd::|evaluate_function|accumulategrad|backward0$|backward1$|^torch::autograd|^cuda[A-Z]"
     r"|^cu[A-Z]|profilerstep|^python|^\$|pjitfunction|executable::|thunkexecutor|threadpool|parsearguments"
     r"|distributeddataparallel|torch.distributed|zero_grad|^end: ", "dispatch"),
    (r"elementwise|(add|mul|div)_out$|triton_(poi|tem)|vectorized|unrolled|_fusion|fusion|wrapped_|embedding|dropout|gelu|silu|relu|tanh"
     r"|aten::(add|sub|mul|div|neg|exp|log|sqrt|rsqrt|pow|sigmoid|where|masked_fill|tril|triu|lerp|addcmul|addcdiv|gather"
     r"|scatter|index|index_select|index_add|index_put|_index_put_impl|native_dropout|abs|clamp|clamp_min|eq|ne|lt|le|gt"
     r"|ge|bitwise_and|bitwise_or|logical_and|logical_or|logical_not|isnan|cos|sin|reciprocal|rsub|erf|maximum|minimum"
     r"|threshold_backward|scatter_add|normal|uniform|bernoulli|one_hot|sign|floor|round|remainder|any|all)_?$"
     r"|^(add|subtract|multiply|divide|exponential|tanh|select|compare|convert|maximum|minimum|gather|scatter|iota"
     r"|negate|rsqrt|log|power|bitcast)([-_.]|$)|index_elementwise|bitcast_", "element-wise"),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in _PATTERNS)


@functools.lru_cache(maxsize=65536)
def kind_of(name: str) -> WorkKind:
    """Returns the kind of work that a name of an operator, a kernel or an HLO instruction tells.

    >>> [kind_of(name) for name in ("aten::addmm", "ncclDevKernel_AllReduce_Sum_bf16", "nvjet_tst_128x256", "mine")]
    ['products', 'exchanges', 'products', 'untold']
    >>> [kind_of(name) for name in ("aten::native_layer_norm", "aten::gelu", "loop_add_fusion.3", "aten::view")]
    ['norms and softmax', 'element-wise', 'element-wise', 'dispatch']
    """
    return next((kind for pattern, kind in _COMPILED if pattern.search(name)), "untold")


def collective_of(name: str) -> str:
    """Returns the kind of exchange that a name tells; empty where it tells none.

    >>> [collective_of(name) for name in ("gloo:all_reduce", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "x")]
    ['all_reduce', 'reduce_scatter', '']
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    if "collectivepermute" in letters:
        return "send"
    return next((kind for kind in COLLECTIVES if kind.replace("_", "") in letters), "")
