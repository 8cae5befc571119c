"""The figures of a plan that are read first, each against a calculation by hand from published formulas."""

import dataclasses
import math
import re

import pytest

from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning.given.figures import first_facts
from alpa_dejavu.planning.given.fitting import what_fits
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.plans.table import lacking
from alpa_dejavu.problem import Plan, PricedBy, StagePlan, Submesh

GIB = 2.0**30
GPT3 = (
    "transformer:hidden=12288,blocks=96,heads=96,vocabulary=51200,sequence=2048,gated=no,rotary=no,rms_norm=no,"
    "biases=all,tied=yes"
)


def given(model, layers, devices, tensor, micro_batches, batch, machine, **choices):
    """A plan of alike stages on whole hosts or parts of one, and the estimator of its like."""
    hosts = max(devices * len(layers) // 8, 1)
    own = max(devices // 8, 1)
    stages = tuple(
        StagePlan(
            (first, last), Submesh(own, min(devices, 8)), (devices // tensor, tensor),
            tuple(f"{machine}-{n * devices // 8 + more}" for more in range(own)), **choices,
        )
        for n, (first, last) in enumerate(layers)
    )  # fmt: skip
    plan = Plan(
        model=model, cluster=f"{hosts} x {machine}", num_micro_batches=micro_batches, schedule="1f1b", step_s=1.0,
        planning_s={}, stages=stages, batch=batch, priced_by=PricedBy(runtime="megatron"),
    )  # fmt: skip
    return plan, PlanEstimator(plan, model, machine)


def facts(plan, estimator):
    planned = estimator.estimate(plan)
    return planned, dict(first_facts(planned.plan, planned))


def checked(text):
    """The two sides of a line such as "3.00 GiB: 3 micro-batches in flight x 2 blocks x 512 MiB", in bytes."""
    whole, _, product = text.partition(": ")
    flight, _, kept = re.sub(r"\(weights.*\)", "", product).rpartition(" in flight x ")
    parts = kept.strip("() ").split(" + ")
    return number(whole), sum(math.prod(map(number, part.split(" x "))) for part in parts) * number(flight)


def number(text):
    """The first figure in a text, in bytes, or as a number."""
    if not text:
        return 1.0
    figure, word = (*text.split(), "")[:2]
    scale = {"TiB": 2.0**40, "GiB": GIB, "MiB": 2.0**20, "billion": 1e9, "million": 1e6}
    return float(figure) * scale.get(word, 1.0)


def llama():
    """Llama-3 8B by 2-fold tensor parallelism in two stages, 4 samples of 8192 tokens in a micro-batch."""
    return given("llama-3-8b", [(0, 16), (17, 33)], 4, 2, 16, 128, "dgx-h100")


def gpt3():
    """GPT-3 175B on 64 hosts in 16 stages, one sample in each replica's micro-batch, all computed again."""
    cuts = [(0, 6), *((1 + 6 * n, 6 + 6 * n) for n in range(1, 15)), (91, 97)]
    return given(GPT3, cuts, 32, 8, 16, 64, "dgx-a100", remat="layer", zero=2)


def mixtral():
    """Mixtral 8x7B on 32 devices, of which 8 divide the experts, with 4096 tokens in a sample."""
    model = dataclasses.replace(transformer_size("mixtral-8x7b"), sequence=4096).text
    return given(model, [(0, 33)], 32, 1, 8, 256, "dgx-a100", zero=2, expert_parallel=8)


def test_memory_of_llama_is_eighteen_bytes_a_parameter_and_what_its_blocks_keep():
    _, shown = facts(*llama())
    attention, fed = 2 * 4096**2 + 2 * 4096 * 1024, 3 * 4096 * 14336
    parameters = (16 * (attention + fed) + 4096 * 128256) / 2
    assert "x 18 bytes (weights 2, gradients 4, optimizer's states 12)" in shown["  parameters"]
    found, product = checked(shown["  parameters"])
    assert found == pytest.approx(18 * parameters, rel=1e-3)
    assert product == pytest.approx(found, rel=1e-3)
    tokens = 4 * 8192
    block = 4 * 2 * tokens * 4096 + 2 * tokens * (4096 + 2 * 1024) + 2 * tokens * 4096 + 4 * tokens * 32
    block = (block + 3 * 2 * tokens * 14336) / 2
    found, product = checked(shown["  activations"])
    assert found == pytest.approx(16 * 2 * block, rel=1e-3)
    assert product == pytest.approx(found, rel=1e-3)
    assert ": 2 micro-batches in flight x 16 blocks x " in shown["  activations"]


def test_memory_of_gpt3_has_states_shared_and_hidden_states_alone_of_what_is_computed_again():
    _, shown = facts(*gpt3())
    assert "(weights 2, gradients 4, optimizer's states 12/4)" in shown["  parameters"]
    found, product = checked(shown["  parameters"])
    parameters = (6 * 12 * 12288**2 + 12288 * (51200 + 2048)) / 8
    assert found == pytest.approx(9 * parameters, rel=2e-3)
    assert product == pytest.approx(found, rel=1e-3)
    found, product = checked(shown["  activations"])
    assert product == pytest.approx(6 * 16 * 2 * 2048 * 12288 / 8, rel=1e-3)
    assert found == pytest.approx(product, abs=0.005 * GIB), "two digits are shown"


def test_memory_of_mixtral_has_experts_states_among_fewer_devices():
    planned, shown = facts(*mixtral())
    attention, expert = 2 * 4096**2 + 2 * 4096 * 1024, 3 * 4096 * 14336
    others, experts = 32 * (attention + 8 * 4096) + 2 * 32000 * 4096, 32 * expert
    found, product = checked(re.sub(r" x [\d.]+ bytes", " x 1 bytes", shown["  parameters"]))
    assert product == pytest.approx(others + experts, rel=1e-3)
    assert found == pytest.approx(6 * (others + experts) + 12 * (others / 32 + experts / 4), rel=1e-3)
    divisor = float(re.search(r"states 12/([\d.]+)\)", shown["  parameters"])[1])
    assert 12 / divisor == pytest.approx(12 * (others / 32 + experts / 4) / (others + experts), rel=1e-3)
    found, product = checked(shown["  activations"])
    assert product == pytest.approx(found, rel=1e-3)
    assert shown["parallelism"] == "tensor 1, pipeline 1, data 32, expert 8, ZeRO-1, recompute none"
    assert shown["batch"] == "256 samples of 4096 tokens: micro-batch 1 x 8 x data 32"
    assert sum(planned.plan.stages[0].memory_parts.values()) == pytest.approx(planned.plan.stages[0].memory_bytes)


@pytest.mark.parametrize(
    ("made", "flop"),
    [
        # Narayanan et al.: 72 b s l h^2 (1 + s / 6h + V / 12lh), whose blocks have no biases and no norms.
        (gpt3, 72 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))),
        # Chowdhery et al.: 6 N + 12 l h s, N without the lookup of embeddings.
        (llama, 6 * (32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256) + 12 * 32 * 4096 * 8192),
        # Of eight experts a token goes to two.
        (
            mixtral,
            6 * (32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336 + 8 * 4096) + 4096 * 32000)
            + 12 * 32 * 4096 * 4096,
        ),
    ],
)
def test_utilisation_is_by_the_usual_rule(made, flop):
    planned, shown = facts(*made())
    plan, length = planned.plan, transformer_size(planned.plan.model).sequence
    tokens_per_s = plan.batch * length / plan.step_s
    peak = {"A100-SXM-80GB": 312e12, "H100-SXM-80GB": 989e12}[planned.cluster.hosts[0].device.name]
    mfu = tokens_per_s * flop / plan.num_devices / peak
    assert planned.flop_utilisation == pytest.approx(mfu, rel=2e-4)
    share, rate, of = re.match(r"([\d.]+) %: ([\d.]+) of (\d+) TFLOP/s a device in bfloat16$", shown["MFU"]).groups()
    assert float(share) == pytest.approx(100 * mfu, abs=0.06)
    assert float(rate) == pytest.approx(tokens_per_s * flop / plan.num_devices / 1e12, rel=1e-3)
    assert float(of) * 1e12 == peak
    assert f"{tokens_per_s:.0f} tokens/s, " in shown["iteration time"]


def test_what_does_not_fit_is_told_once_with_the_least_changes_that_do():
    plan, estimator = llama()
    planned = estimator.estimate(plan)
    (sentence,) = lacking(planned.plan)
    missing = [stage.memory_bytes - stage.memory_limit_bytes for stage in planned.plan.stages]
    low, high = (f"{num_bytes / GIB:.2f}" for num_bytes in (min(missing), max(missing)))
    assert sentence == f"{low} to {high} GiB of each device's memory are missing on stage [0-1]"
    assert [text for name, text in first_facts(planned.plan) if name == "doesn't fit"] == [sentence]
    assert what_fits(plan, estimator) == "tried, and enough: recompute full or micro-batch 2 x 32 x data 2"
    stages = tuple(dataclasses.replace(stage, remat="layer") for stage in plan.stages)
    assert not lacking(estimator.estimate(dataclasses.replace(plan, stages=stages)).plan)
    assert not lacking(estimator.estimate(dataclasses.replace(plan, num_micro_batches=32)).plan)
    shared = tuple(dataclasses.replace(stage, zero=2) for stage in plan.stages)
    assert lacking(estimator.estimate(dataclasses.replace(plan, stages=shared)).plan), "it wouldn't be enough alone"


def test_where_no_change_is_enough_that_is_said():
    plan, estimator = given("llama-3-70b", [(0, 81)], 8, 8, 8, 8, "dgx-a100")
    assert what_fits(plan, estimator).startswith("tried, and not enough: recompute, ZeRO and smaller micro-batches")
