"""Every operator of the table from ATen to jax computes what torch computes, and has the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch`")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

from torch.nn import functional as F  # noqa: E402

import torch_models  # noqa: E402, F401 - which mends the import of torchvision
from alpa_dejavu.layers.torch_modules._exported import exported  # noqa: E402
from alpa_dejavu.layers.torch_modules._products import spread_evenly  # noqa: E402
from alpa_dejavu.layers.torch_modules._program import Program  # noqa: E402
from alpa_dejavu.layers.torch_modules._table import OPERATORS  # noqa: E402

aten = torch.ops.aten


def floats(*shape, least=-2.0):
    """Numbers without ties, so that orders are the same."""
    numbers = np.random.default_rng(sum(shape)).permutation(np.linspace(least, 2.1, int(np.prod(shape))))
    return torch.tensor(numbers.reshape(shape), dtype=torch.float32)


def whole(*shape, below=3):
    return torch.tensor(np.random.default_rng(7).integers(0, below, shape))


X, Y, POSITIVE = floats(2, 3, 4), floats(2, 3, 4).flip(0) + 0.05, floats(2, 3, 4, least=0.1)
IMAGE, MATRIX, N = floats(2, 4, 8, 8), floats(5, 4), whole(2, 3)
QUERY, KEY, VALUE = floats(2, 4, 6, 8), floats(2, 2, 6, 8).flip(2), floats(2, 2, 6, 8).flip(3)
WEIGHTS, ENDS = floats(2, 8, 8), torch.tensor([2, 6], dtype=torch.int32)
LABELS = torch.tensor([1, 0, -100, 2, 1])


def numbers(function):
    """A function of which the result has no gradient, as numbers that have one."""
    return lambda *arrays: function(*arrays).to(torch.float32)


def aten_of_transformers(x, weights, ends):
    pytest.importorskip("transformers.integrations.moe", reason="Hugging Face's transformers aren't installed")
    return torch.ops.transformers.grouped_mm_fallback(x, weights, ends)


CASES = {
    "abs": [(torch.abs, X)],
    "neg": [(torch.neg, X)],
    "exp": [(torch.exp, X)],
    "log": [(torch.log, POSITIVE)],
    "sqrt": [(torch.sqrt, POSITIVE)],
    "rsqrt": [(torch.rsqrt, POSITIVE)],
    "square": [(torch.square, X)],
    "reciprocal": [(torch.reciprocal, POSITIVE)],
    "sin": [(torch.sin, X)],
    "cos": [(torch.cos, X)],
    "tanh": [(torch.tanh, X)],
    "erf": [(torch.erf, X)],
    "sigmoid": [(torch.sigmoid, X)],
    "relu": [(torch.relu, X), (lambda x: F.relu(x * 2, inplace=True), X)],
    "silu": [(F.silu, X)],
    "gelu": [(F.gelu, X), (lambda x: F.gelu(x, approximate="tanh"), X)],
    "softplus": [(F.softplus, X), (lambda x: F.softplus(x, beta=2, threshold=1), X)],
    "leaky_relu": [(lambda x: F.leaky_relu(x, 0.2), X)],
    "relu6": [(lambda x: F.relu6(x * 4), X)],
    "hardtanh": [(F.hardtanh, X)],
    "dropout": [(lambda x: F.dropout(x, 0.5, training=False), X), (lambda x: F.dropout(x, 0.0), X)],
    "native_dropout": [(lambda x: aten.native_dropout(x, 0.0, True)[0], X)],
    "add": [(torch.add, X, Y), (lambda x, y: torch.add(x, y, alpha=3), X, Y), (lambda x: x + 2, X)],
    "sub": [(torch.sub, X, Y), (lambda x, y: torch.sub(x, y, alpha=3), X, Y)],
    "rsub": [(lambda x: torch.rsub(x, 2), X), (lambda x, y: torch.rsub(x, y, alpha=3), X, Y)],
    "mul": [(torch.mul, X, Y), (lambda x: x * 2.5, X), (lambda x, n: x.bfloat16() * n.sum(), X, POSITIVE)],
    "div": [
        (torch.div, X, POSITIVE), (lambda x: x / 3, X),
        (lambda x: torch.div(x, 0.3, rounding_mode="floor"), X),
        (lambda x: torch.div(x, 0.3, rounding_mode="trunc"), X),
    ],
    "floor_divide": [(numbers(lambda n: n // 2), N)],
    "remainder": [(numbers(lambda n: n % 2), N)],
    "pow": [(lambda x: x**2, X), (lambda x, y: x**y, POSITIVE, Y), (lambda x: 2.0**x, X)],
    "maximum": [(torch.maximum, X, Y)],
    "minimum": [(torch.minimum, X, Y)],
    "clamp": [(lambda x: x.clamp(-1, 1), X), (lambda x: x.clamp(max=1), X)],
    "clamp_min": [(lambda x: aten.clamp_min(x, 0.5), X)],
    "eq": [(numbers(lambda n: n == 1), N)],
    "ne": [(numbers(lambda n: n != 1), N)],
    "lt": [(numbers(torch.lt), X, Y)],
    "le": [(numbers(torch.le), X, Y)],
    "gt": [(numbers(torch.gt), X, Y)],
    "ge": [(numbers(torch.ge), X, Y)],
    "logical_not": [(numbers(torch.logical_not), N)],
    "logical_and": [(numbers(lambda n: torch.logical_and(n > 0, n < 2)), N)],
    "logical_or": [(numbers(lambda n: torch.logical_or(n > 1, n < 1)), N)],
    "bitwise_not": [(numbers(lambda n: ~(n > 1)), N)],
    "bitwise_and": [(numbers(lambda n: aten.bitwise_and((n > 0), (n < 2))), N)],
    "bitwise_or": [(numbers(lambda n: aten.bitwise_or((n > 1), (n < 1))), N)],
    "__and__": [(numbers(lambda n: (n > 0) & (n < 2)), N)],
    "__or__": [(numbers(lambda n: (n > 1) | (n < 1)), N)],
    "where": [(lambda x, y: torch.where(x > y, x, y), X, Y), (lambda x: torch.where(x > 0, x, 0.5), X)],
    "masked_fill": [(lambda x: x.masked_fill(x > 1, -5.0), X)],
    "arange": [
        (lambda x: x + torch.arange(4), X), (lambda x: x + torch.arange(1.0, 9.0, 2.0), X),
        (lambda x: x + torch.arange(3, 7), X),
    ],
    "full": [(lambda x: x + torch.full((3, 4), 2.5), X)],
    "zeros": [(lambda x: x + torch.zeros(4), X)],
    "empty": [(lambda x: x + torch.empty(4).fill_(3), X)],
    "ones": [(lambda x: x + torch.ones(3, 1), X)],
    "scalar_tensor": [(lambda x: x * aten.scalar_tensor(2.5), X)],
    "full_like": [(lambda x: x + torch.full_like(x, 2.5), X)],
    "zeros_like": [(lambda x: x + torch.zeros_like(x), X)],
    "empty_like": [(lambda x: x + torch.empty_like(x).fill_(3), X)],
    "ones_like": [(lambda x: x + torch.ones_like(x), X)],
    "new_full": [(lambda x: x + x.new_full((4,), 1.5), X)],
    "new_zeros": [(lambda x: x + x.new_zeros(4), X)],
    "new_empty": [(lambda x: x + x.new_empty(4).fill_(3), X)],
    "new_ones": [(lambda x: x + x.new_ones(4), X)],
    "one_hot": [(numbers(lambda n: F.one_hot(n, 3)), N)],
    "tril": [(torch.tril, MATRIX), (lambda x: torch.tril(x, -1), MATRIX)],
    "triu": [(lambda x: torch.triu(x, diagonal=1), MATRIX)],
    "alias": [(aten.alias, X)],
    "contiguous": [(lambda x: x.transpose(0, 1).contiguous(), X)],
    "detach": [(lambda x: x * x.detach(), X)],
    "to": [
        (lambda x: x.to(torch.bfloat16).to(torch.float32), X), (lambda x: x.to("cpu"), X),
        (lambda x, y: x.to(y), X, Y), (lambda x: x.to(torch.bfloat16, copy=True), X),
    ],
    "type_as": [(lambda n, x: n.type_as(x), N, X)],
    "view": [(lambda x: x.view(2, -1), X)],
    "view_as": [(lambda x, y: x.view_as(y), MATRIX, floats(2, 10))],
    "reshape": [(lambda x: x.reshape(-1), X)],
    "flatten": [(lambda x: x.flatten(1), X), (lambda x: torch.flatten(x, 0, 1), X)],
    "unflatten": [(lambda x: x.unflatten(-1, (2, 2)), X)],
    "transpose": [(lambda x: x.transpose(-1, 0), X)],
    "t": [(torch.t, MATRIX)],
    "numpy_T": [(lambda x: x.T, MATRIX)],
    "mT": [(lambda x: x.mT, X)],
    "broadcast_tensors": [(lambda x, y: torch.broadcast_tensors(x, y[:, :1])[1], X, Y)],
    "permute": [(lambda x: x.permute(2, 0, 1), X)],
    "movedim": [(lambda x: x.movedim(0, -1), X)],
    "unsqueeze": [(lambda x: x.unsqueeze(-1), X)],
    "squeeze": [(lambda x: x[:, :1].squeeze(1), X), (lambda x: x[:, :1].squeeze(), X), (lambda x: x.squeeze(0), X)],
    "expand": [(lambda x: x.unsqueeze(1).expand(-1, 5, 3, 4), X), (lambda x: x.expand(6, 2, 3, 4), X)],
    "expand_as": [(lambda x, y: x.sum(1, keepdim=True).expand_as(y), X, Y)],
    "split": [(lambda x: x.split(3, -1)[1] * 2, X)],
    "split_with_sizes": [(lambda x: aten.split_with_sizes(x, [1, 3], -1)[1] * 2, X)],
    "chunk": [(lambda x: x.chunk(2, 1)[1] * 2, X)],
    "unbind": [(lambda x: x.unbind(1)[2], X)],
    "slice": [(lambda x: x[:, 1:], X), (lambda x: x[..., ::2], X), (lambda x: x[:, -2:-1], X)],
    "select": [(lambda x: x[:, -1], X)],
    "narrow": [(lambda x: x.narrow(2, 1, 2), X)],
    "getitem": [(lambda x: torch.topk(x, 2)[0], X)],
    "clone": [(torch.clone, X)],
    "lift_fresh_copy": [(aten.lift_fresh_copy, X)],
    "copy": [(lambda x, y: x + aten.copy(y.detach(), x.detach()), X, Y)],
    "fill": [(lambda x: x + aten.fill(x, 2.0), X)],
    "_to_copy": [(lambda x: aten._to_copy(x, dtype=torch.bfloat16), X)],
    "slice_scatter": [(lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 1, 2), X)],
    "select_scatter": [(lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, -1), X)],
    "repeat": [(lambda x: x.repeat(2, 1, 3), X), (lambda x: x.repeat(3, 1, 1, 1), X)],
    "repeat_interleave": [(lambda x: x.repeat_interleave(2, 1), X)],
    "cat": [(lambda x, y: torch.cat([x, y], -1), X, Y), (lambda x: torch.cat([torch.empty(0), x], 1), X)],
    "stack": [(lambda x, y: torch.stack([x, y], 1), X, Y)],
    "pad": [(lambda x: F.pad(x, (1, 2, 0, 1)), X), (lambda x: F.pad(x, (-1, 1), value=3.0), X)],
    "roll": [(lambda x: x.roll(1, 2), X), (lambda x: x.roll((1, -1), (0, 1)), X), (lambda x: x.roll(2), X)],
    "flip": [(lambda x: x.flip(0, 2), X)],
    "index": [(lambda x, n: x[:, n], X, N), (lambda x, n: x[n[:, 0] % 2, n[:, 1]], X, N)],
    "index_select": [(lambda x, n: x.index_select(1, n[0]), X, N)],
    "index_put": [
        (lambda x, n: x.index_put((n[0] % 2,), x[:, 0].sum(), accumulate=True), X, N),
        (lambda x, y: x.index_put((torch.arange(2),), y), X, Y),
    ],
    "index_add": [(lambda x, n: x.index_add(1, n[0], x * 2, alpha=3), X, N)],
    "gather": [(lambda x, n: x.gather(-1, n.unsqueeze(-1)), X, N)],
    "scatter": [
        (lambda x: x.scatter(1, torch.arange(1, 2).expand(2, 1, 4), x[:, :1] * 2), X),
        (lambda x: x.scatter(1, torch.arange(1, 2).expand(2, 1, 4), 5.0), X),
    ],
    "scatter_add": [(lambda x, n: x.scatter_add(2, n.unsqueeze(-1), x[..., :1] * 2), X, N)],
    "linear": [(F.linear, X, MATRIX), (F.linear, X, MATRIX, floats(5))],
    "matmul": [(lambda x, m: x @ m.mT, X, MATRIX), (lambda x, y: x @ y.mT, X, Y)],
    "mm": [(torch.mm, MATRIX, floats(4, 3))],
    "bmm": [(torch.bmm, X, floats(2, 4, 5))],
    "addmm": [(torch.addmm, floats(5), MATRIX, floats(4, 5)),
              (lambda x, m: torch.addmm(x, m, x[:4] * 1, beta=2, alpha=3), floats(5, 4), floats(5, 4))],
    "baddbmm": [(lambda x, y: torch.baddbmm(x @ y.mT, x, y.mT, beta=0.5), X, Y)],
    "einsum": [(lambda x, m: torch.einsum("bij,kj->bki", x, m), X, MATRIX)],
    "conv1d": [(lambda x, w: F.conv1d(x, w, padding="same"), floats(2, 4, 9), floats(6, 4, 3))],
    "conv2d": [
        (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), IMAGE, floats(6, 4, 3, 3), floats(6)),
        (lambda x, w: F.conv2d(x, w, padding=(0, 2), dilation=(1, 2), groups=2), IMAGE, floats(6, 2, 3, 3)),
    ],
    "conv3d": [(lambda x, w: F.conv3d(x, w, stride=(1, 2, 2)), floats(1, 2, 4, 6, 6), floats(3, 2, 2, 2, 2))],
    "embedding": [
        (lambda w, n: F.embedding(n, w), MATRIX, N),
        (lambda w, n: F.embedding(n, w, padding_idx=1), MATRIX, N),
    ],
    "scaled_dot_product_attention": [
        (F.scaled_dot_product_attention, QUERY, QUERY.flip(2), QUERY.flip(3)),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.3),
         QUERY, KEY, VALUE),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q.new_ones(6, 6).tril() > 0, enable_gqa=True),
         QUERY, KEY, VALUE),
        (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
         QUERY, KEY, VALUE, floats(2, 4, 6, 6)),
        (lambda q, m: F.scaled_dot_product_attention(q, q, q, m), QUERY, floats(2, 1, 6, 6)),
    ],
    "_grouped_mm": [
        (lambda x, w, ends: torch._grouped_mm(x.bfloat16(), w.bfloat16(), offs=ends), floats(6, 8), WEIGHTS, ENDS)
    ],
    "grouped_mm_fallback": [(aten_of_transformers, floats(6, 8), WEIGHTS, ENDS)],
    "sum": [(torch.sum, X), (lambda x: x.sum((0, 2), keepdim=True), X), (lambda n: n.sum(1, dtype=torch.float32), N)],
    "mean": [(torch.mean, X), (lambda x: x.mean(-1), X)],
    "prod": [(lambda x: x.prod(1), X)],
    "amax": [(lambda x: x.amax((1, 2)), X)],
    "amin": [(lambda x: x.amin(-1, keepdim=True), X)],
    "any": [(numbers(lambda n: (n > 1).any()), N), (numbers(lambda n: (n > 1).any(1)), N)],
    "all": [(numbers(lambda n: (n > 0).all(0)), N)],
    "argmax": [(numbers(lambda x: x.argmax(-1)), X)],
    "argmin": [(numbers(lambda x: x.argmin(1, keepdim=True)), X)],
    "logsumexp": [(lambda x: x.logsumexp(-1), X), (lambda x: x.logsumexp((0, 1), keepdim=True), X)],
    "var": [
        (torch.var, X),
        (lambda x: x.var(-1, unbiased=False), X),
        (lambda x: x.var(0, correction=0, keepdim=True), X),
    ],
    "std": [(lambda x: x.std(-1, True, True), X), (lambda x: x.std(unbiased=False), X)],
    "max": [(torch.max, X), (lambda x: x.max(1)[0], X), (lambda x, y: torch.max(x, y), X, Y)],
    "min": [(torch.min, X), (lambda x: x.min(-1, keepdim=True)[0], X), (lambda x, y: torch.min(x, y), X, Y)],
    "linalg_vector_norm": [(torch.linalg.vector_norm, X), (lambda x: torch.linalg.vector_norm(x, float("inf"), -1), X),
                           (lambda x: torch.linalg.vector_norm(x, 3, (0, 1), True), X)],
    "cumsum": [(lambda x: x.cumsum(1), X)],
    "softmax": [(lambda x: x.softmax(-1), X), (lambda x: x.bfloat16().softmax(1, torch.float32), X)],
    "log_softmax": [(lambda x: x.log_softmax(1), X)],
    "layer_norm": [
        (lambda x: F.layer_norm(x, (3, 4)), X),
        (lambda x, w, b: F.layer_norm(x, (4,), w, b), X, Y[0, 0], X[0, 0]),
    ],
    "rms_norm": [(lambda x: F.rms_norm(x, (4,)), X), (lambda x, w: F.rms_norm(x, (4,), w, 1e-3), X, Y[0, 0])],
    "group_norm": [(lambda x, w: F.group_norm(x, 2, w, w * 2), IMAGE, floats(4))],
    "batch_norm": [
        (lambda x, w: F.batch_norm(x, w.detach() * 0, w.detach() * 0 + 1, w, w * 2, training=True), IMAGE, floats(4)),
        (lambda x, w, v: F.batch_norm(x, w.detach(), v.detach(), w, w * 2), IMAGE, floats(4), floats(4, least=0.1)),
    ],
    "max_pool2d": [
        (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
        (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    ],
    "avg_pool2d": [
        (lambda x: F.avg_pool2d(x, 2), IMAGE), (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    ],
    "adaptive_avg_pool2d": [(lambda x: F.adaptive_avg_pool2d(x, (2, 4)), IMAGE)],
    "argsort": [(numbers(lambda x: x.argsort(-1, descending=True)), X)],
    "sort": [(lambda x: x.sort(1)[0], X), (lambda x: x.sort(-1, descending=True)[0], X)],
    "topk": [(lambda x: x.topk(2)[0], X), (lambda x: x.topk(2, 1, largest=False)[0], X)],
    "histc": [(lambda n: torch.histc(n.to(torch.float32), 3, 0, 2), N)],
    "cross_entropy_loss": [
        (F.cross_entropy, MATRIX, LABELS),
        (lambda x, n: F.cross_entropy(x, n, label_smoothing=0.1), MATRIX, LABELS),
        (lambda x, n: F.cross_entropy(x, n, reduction="sum"), MATRIX, LABELS),
        (lambda x, n, w: F.cross_entropy(x, n, w.detach()), MATRIX, LABELS, floats(4, least=0.1)),
        (lambda x, n: F.cross_entropy(x, n % 3, reduction="none"), X, whole(2, 4)),
        (lambda x, y: F.cross_entropy(x, y.softmax(-1), label_smoothing=0.2), MATRIX, floats(5, 4).flip(0)),
    ],
    "nll_loss_nd": [(lambda x, n: F.nll_loss(x, n), MATRIX, LABELS)],
    "mse_loss": [(F.mse_loss, X, Y), (lambda x, y: F.mse_loss(x, y, reduction="sum"), X, Y)],
    "l1_loss": [(F.l1_loss, X, Y), (lambda x, y: F.l1_loss(x, y, reduction="none"), X, Y)],
    "binary_cross_entropy_with_logits": [
        (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), X, Y),
        (lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.sigmoid(), w.detach(), pos_weight=w.detach()),
         X, Y, POSITIVE),
    ],
}  # fmt: skip


class Written(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays):
        return self.function(*arrays)


def in_jax(tensor):
    return jnp.asarray(tensor.detach().to(torch.float32).numpy() if tensor.is_floating_point() else tensor.numpy())


def check(name, function, tensors):
    forward = exported(Written(function), tensors, {})
    assert name in {step.operator for step in forward.operations}
    kept = {place: jnp.zeros(w.like.shape, w.like.dtype) for w in forward.weights for place in w.places}
    program = Program(forward, exact=True)
    arrays = {**kept, **dict(zip(forward.inputs, map(in_jax, tensors), strict=True))}
    trained = {place: n for n, place in enumerate(forward.inputs) if tensors[n].is_floating_point()}
    leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
    want = function(*leaves)
    half = want.dtype == torch.bfloat16
    got = program(arrays)
    assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(got.astype(jnp.float32), in_jax(want), rtol=1e-5, atol=1e-5)
    if not want.requires_grad:
        return
    slopes = np.cos(np.arange(want.numel(), dtype=np.float32)).reshape(want.shape)
    (want * torch.tensor(slopes).to(want.dtype)).sum().backward()

    def loss(parameters):
        return (program({**arrays, **parameters}) * slopes.astype(got.dtype)).sum()

    gradients = jax.grad(loss)({place: arrays[place] for place in trained})
    for place, n in trained.items():
        expected = np.zeros(leaves[n].shape) if leaves[n].grad is None else in_jax(leaves[n].grad)
        np.testing.assert_allclose(gradients[place], expected, rtol=1e-2 if half else 1e-4, atol=1e-2 if half else 1e-4)


def test_every_operator_has_a_case():
    assert set(CASES) == set(OPERATORS)


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, cases in CASES.items() for number in range(len(cases))]
)
def test_as_torch(name, number):
    function, *tensors = CASES[name][number]
    check(name, function, tuple(tensors))


@pytest.mark.parametrize("rows", [6, 7])
def test_groups_that_are_even_give_what_exact_ones_give(rows):
    """A plan's product of groups is the exact one where groups have equally many rows; the last may have fewer."""
    ends = jnp.array([-(-rows // 2), rows])
    arrays = in_jax(floats(rows, 8)), in_jax(WEIGHTS), ends
    np.testing.assert_allclose(spread_evenly(*arrays), OPERATORS["_grouped_mm"](*arrays), rtol=1e-5, atol=1e-5)
