"""Modules of PyTorch as train steps: what the program computes, what is trained, and what is refused."""

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch`")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

from torch import nn  # noqa: E402

from alpa_dejavu import plan_model  # noqa: E402
from alpa_dejavu.layers import attention_of, trace  # noqa: E402
from alpa_dejavu.layers.features.structure import structure  # noqa: E402
from alpa_dejavu.layers.torch_modules import module_step  # noqa: E402
from alpa_dejavu.layers.torch_modules._exported import exported  # noqa: E402
from alpa_dejavu.layers.torch_modules._program import Program  # noqa: E402
from alpa_dejavu.layers.torch_modules._table import PLANNED  # noqa: E402
from torch_models import FAMILIES, family  # noqa: E402


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Blocks(nn.Module):
    """Blocks between a table and a head, with a loss where there are labels; the first `frozen` aren't trained."""

    def __init__(self, number=3, frozen=0, hidden=16, dtype=torch.float32):
        super().__init__()
        self.table = nn.Embedding(32, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(number))
        self.head = nn.Linear(hidden, 32, bias=False)
        self.blocks[:frozen].requires_grad_(False)
        self.to(dtype)

    def forward(self, words, labels=None):
        x = self.table(words)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


WORDS = torch.zeros(2, 8, dtype=torch.long)
LABELLED = {"words": WORDS, "labels": WORDS + 1}


def in_jax(tensor):
    return jnp.asarray(tensor.detach().numpy())


@pytest.mark.parametrize("name", FAMILIES)
def test_families_compute_what_torch_computes(name):
    module, inputs = family(name)
    options = inputs if isinstance(inputs, dict) else {}
    forward = exported(module, () if options else (inputs,), options)
    program = Program(forward, exact=True)
    own = dict((*module.named_parameters(), *module.named_buffers()))
    data = {
        place: in_jax(tensor) for place, tensor in zip(sorted(forward.inputs), jax.tree.leaves(inputs), strict=True)
    }
    kept = {
        w.name: in_jax(own[w.name]) if w.name in own else jnp.zeros(w.like.shape, w.like.dtype) for w in forward.weights
    }
    trained = {weight.name: kept[weight.name] for weight in forward.weights if weight.trained}

    def result(trained):
        arrays = {place: {**kept, **trained}[weight.name] for weight in forward.weights for place in weight.places}
        return program({**arrays, **data})

    want = module(**options).loss if options else module(inputs)
    np.testing.assert_allclose(result(trained), in_jax(want), rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max())))
    (want**2).mean().backward()
    gradients = jax.grad(lambda trained: (result(trained) ** 2).mean())(trained)
    assert {name for name, weight in module.named_parameters() if weight.grad is not None} == set(gradients)
    for weight, gradient in gradients.items():
        expected = in_jax(own[weight].grad)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(jnp.abs(expected).max())))


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_traced_with_their_attention_as_kernels(name):
    module, inputs = family(name)
    traced = trace((module.train(), inputs), batch=4, num_micro_batches=2)
    assert (attention_of(traced).by_pattern, attention_of(traced).by_call) == (0, FAMILIES[name][2])
    assert len(traced.gradients) == len(list(module.parameters()))
    assert traced.micro_batch == 2


def test_a_step_is_that_of_adamw():
    """One step of the whole function against torch's own optimizer, whose weight decay is of matrices alone, too."""
    torch.manual_seed(1)
    module = Blocks(2, frozen=1)
    step, ((kept, state), _) = module_step(module, LABELLED)
    own = dict(module.named_parameters())
    kept = {name: in_jax(own[name]) for name in kept}
    names = {("blocks.1.", "inner.weight"), ("blocks.1.", "inner.bias"), ("", "table.weight"), ("", "head.weight")}
    groups = [
        {key: in_jax(next(own[block + key] for block, other in names if other == key)) for key in group}
        for group in state.parameters
    ]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state.optimizer)
    words = {name: in_jax(tensor) for name, tensor in LABELLED.items()}
    _, after = step((kept, state._replace(parameters=groups, optimizer=zeros)), words)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in own.values() if p.ndim > 1], "weight_decay": 1e-4},
         {"params": [p for p in own.values() if p.ndim == 1], "weight_decay": 0.0}], lr=1e-2
    )  # fmt: skip
    module(**LABELLED).backward()
    optimizer.step()
    for group in after.parameters:
        for key, array in group.items():
            expected = next(own[block + key] for block, other in names if other == key)
            np.testing.assert_allclose(array, in_jax(expected), rtol=1e-4, atol=1e-6)


def test_blocks_are_traced_once_and_alike(monkeypatch):
    traced_blocks = []
    tanh = PLANNED["tanh"]
    monkeypatch.setitem(PLANNED, "tanh", lambda x: (traced_blocks.append(x.shape), tanh(x))[1])
    traced = trace((Blocks(8), LABELLED), batch=4)
    assert traced_blocks == [(4, 8, 16)]
    ends = [n for n, equation in enumerate(traced.loss.eqns) if equation.primitive.name == "tanh"]
    assert len(ends) == 8
    assert len({structure(traced.row(first + 1, last + 1)) for first, last in itertools.pairwise(ends)}) == 1


def test_what_needs_no_gradient_is_frozen():
    module = Blocks(3, frozen=2)
    traced = trace((module, LABELLED), batch=4)
    assert len(traced.gradients) == 2 + 2
    assert traced.num_parameters == sum(p.numel() for p in module.parameters())
    result = plan_model((module, LABELLED), "p3.8xlarge", batch=64, micro_batches=1, layers=1)
    whole = plan_model((Blocks(3), LABELLED), "p3.8xlarge", batch=64, micro_batches=1, layers=1)
    assert result.plan.stages[0].resident_bytes < whole.plan.stages[0].resident_bytes


def test_a_module_of_which_nothing_is_trained_is_planned_as_inference():
    traced = trace((Blocks().requires_grad_(False), (WORDS,)), batch=4)
    assert not traced.training
    assert "takes no gradient" in traced.notes[0]


def test_weights_of_16_bits_have_copies_of_32():
    _, ((kept, state), batch) = module_step(Blocks(2, dtype=torch.bfloat16), LABELLED)
    assert kept == {}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.parameters)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.master)} == {jnp.dtype("float32")}
    assert {name: leaf.dtype for name, leaf in batch.items()} == dict.fromkeys(LABELLED, jnp.dtype("int32"))


def test_a_tied_table_is_one_weight():
    module, inputs = family("gpt2")
    step = trace((module, inputs), batch=2)
    assert module.lm_head.weight is module.transformer.wte.weight
    assert len(step.gradients) == len(list(module.parameters()))


def test_the_meta_device_and_the_cpu_give_the_same_plan():
    plans = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            module = Blocks()
        plans.append(plan_model((module, LABELLED), "p3.8xlarge", batch=64, layers=2).plan)
    assert plans[0].step_s == plans[1].step_s
    assert plans[0].stages == plans[1].stages


def test_a_module_without_a_loss_has_a_note():
    traced = trace((Blocks(), WORDS), batch=4)
    assert "Blocks returns no loss, so the mean square of its first output is planned" in traced.notes[0]
    assert trace((Blocks(), LABELLED), batch=4).notes == ()


def test_experts_are_planned_with_equally_many_tokens():
    module, inputs = family("mixtral")
    (note,) = trace((module, inputs), batch=2).notes
    assert "in model.layers.0.mlp.experts (MixtralExperts) is planned with as many tokens for each expert" in note


def test_changes_in_place_are_seen_through_views():
    class InPlace(nn.Module):
        def forward(self, x):
            shifted = x.new_zeros(x.shape)
            shifted[..., 1:] = x[..., :-1]
            shifted.mul_(2)
            first = shifted[:, 0]
            first += 3
            return shifted + x.relu_()

    x = torch.arange(-6.0, 6.0).reshape(3, 4)
    forward = exported(InPlace(), (x,), {})
    (place,) = forward.inputs
    np.testing.assert_array_equal(Program(forward)({place: in_jax(x)}), in_jax(InPlace()(x.clone())))


class Unknown(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs()


class ByNumbers(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class ByShapes(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


FLOATS = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), Unknown()), FLOATS, r"operators are aten\.fft_rfft.* in 1 \(Unknown\), but"),
        (ByNumbers(), FLOATS, "model is ByNumbers, but must run the same operations whatever numbers it is given"),
        (ByShapes(), FLOATS, r"ByShapes"),
        (nn.Linear(3, 4), FLOATS, r"inputs are \(2, 4\) of float32, but must be such that torch.export can.*Linear"),
        (nn.Linear(3, 4), (), r"inputs are none, but must be such"),
        (nn.Linear(4, 4), {"words": FLOATS}, r"inputs are \(2, 4\) of float32, but must be such"),
        (nn.ReflectionPad1d(1), FLOATS, r"aten\.pad.*'reflect', but must be 'constant'"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_named(module, inputs, message):
    with pytest.raises(ValueError, match=message):
        trace((module, inputs), batch=2)


def test_a_module_without_inputs_is_refused():
    with pytest.raises(TypeError, match=r"is a Blocks, but must have its inputs, too; give \(module, inputs\)"):
        trace(Blocks(), batch=2)


def test_a_batch_that_inputs_do_not_have_is_refused():
    with pytest.raises(ValueError, match="was asked for a batch of 4, but the arrays of its second argument"):
        trace(lambda batch_size: (Blocks(), LABELLED), batch=4)


def test_only_a_module_imports_torch():
    traces = "from alpa_dejavu.layers import trace; trace('gpt-125m', batch=1)"
    code = f"import sys; {traces}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
