"""Plans for a training framework: the best of those that its rules allow, and what the rules cost."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search.restriction import Restriction, restriction
from alpa_dejavu.planning.search.runtimes import RUNTIMES, hindrances
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.problem import Cuts, NoPlanError, Run, StageChoice
from alpa_dejavu.slicing import Dynamic
from alpa_dejavu.testing import example_cluster, random_problem
from models import chain, costs_of

SIZES = Transformer(64, 4, 4, 512, 32, feed_forward=128)
OTHERS = [name for name in RUNTIMES if name != "alpa"]


def restricted_costs(name, seed=0, layers=4, count=4, micro_batch=4):
    """The costs of all stages of a model of unlike layers that a framework can run on two hosts."""
    cluster = example_cluster(2, 4, memory_bytes=2.0**33)
    model = chain(layers, flop=1e9 * (1 + seed), exchanged=(4e6,), activation_bytes=1e6, parameter_bytes=1e8)
    rules = SpaceRules(restriction=Restriction(RUNTIMES[name], count * micro_batch, None))
    run = Run(count, "gpipe" if name == "maxtext" else "1f1b")
    return costs_of(model, cluster, rules.space(cluster, micro_batch), run)


def plans_by_hand(costs, name):
    """Every plan that a framework's rules allow, by these rules and not by families."""
    limits, space, layers = RUNTIMES[name], costs.space, costs.model.num_layers
    for s, submesh in enumerate(space.submeshes):
        stages = costs.cluster.num_devices // submesh.num_devices
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            ends = (0, *cuts, layers)
            if limits.cuts.even and len({b - a for a, b in itertools.pairwise(ends)}) > 1:
                continue
            for row in itertools.product(range(len(space.configs[s])), repeat=stages):
                configs = [space.configs[s][c] for c in row]
                if None in configs or len({config.shape for config in configs}) > 1:
                    continue
                if not limits.unlike_remat and len({config.remat for config in configs}) > 1:
                    continue
                if len({config.zero for config in configs}) > 1:
                    continue
                places = zip(itertools.pairwise(ends), row, strict=True)
                yield tuple(StageChoice(a, b - 1, s, c) for (a, b), c in places)


@pytest.mark.parametrize("name", OTHERS)
def test_the_slicer_is_exact_among_the_plans_that_a_framework_can_run(name):
    costs = restricted_costs(name)
    noise = np.random.default_rng(3).uniform(0.5, 1.5, costs.problem.costs_s.shape)
    problem = dataclasses.replace(costs.problem, costs_s=costs.problem.costs_s * noise)
    found = Dynamic().slice(problem)
    best = min(map(problem.total_s, plans_by_hand(costs, name)))
    assert math.isfinite(best)
    assert found.cost_s == pytest.approx(best, rel=1e-12)
    assert found.lower_bound_s == pytest.approx(best, rel=1e-12)


def test_even_cuts_leave_embeddings_and_heads_with_their_blocks():
    allowed = Cuts(ends=1, even=True).allowed(10, 4)
    assert sorted(zip(*map(list, np.nonzero(allowed)), strict=True)) == [(0, 2), (3, 4), (5, 6), (7, 9)]
    assert not Cuts(ends=1, even=True).allowed(10, 3).any()
    alone = Cuts(ends=1, lone_ends=False).allowed(4, 2)
    assert not alone[0, 0]
    assert not alone[3, 3]
    assert alone[0, 1]


@pytest.mark.parametrize("name", OTHERS)
def test_the_plan_is_one_that_the_framework_can_run(name):
    schedule = "gpipe" if name == "maxtext" else "1f1b"
    made = plan_model(SIZES.text, example_cluster(2, 2), 1, 16, 4, schedule=schedule, runs_on=name, runtime="alpa").plan
    assert not list(hindrances(made, name, RUNTIMES[name]))
    assert made.layer_option == "manual"
    assert made.num_layers == SIZES.num_layers
    assert made.priced_by.runs_on == name
    assert any(note.startswith((f"that {name} can run it costs ", f"{name} can run it")) for note in made.notes)
    for told, why in (
        ({"context_parallel": 2}, "no context parallelism in its files"),
        ({"expert_parallel": 2}, "no expert parallelism in its files"),
        ({"sharded": 2}, "no ZeRO in groups in its files"),
        ({"remat": "selective"}, "no 'recompute selective' in its files"),
    ):
        (field,) = told
        if field in RUNTIMES[name].degrees or told.get("remat") in RUNTIMES[name].remat:
            continue
        stages = tuple(dataclasses.replace(stage, **told) for stage in made.stages)
        other = dataclasses.replace(made, stages=stages, runs_on_alpa=False)
        said = [str(one) for one in hindrances(other, name, RUNTIMES[name])]
        assert any(why in one and f"plan again with --for {name}" in one for one in said)
        assert not any("reduction servers" in one for one in said)


def test_what_the_restriction_costs_is_the_difference_to_the_free_plan():
    model, cluster = chain(5, 1e10, exchanged=(1e9,), parameter_bytes=1e9), example_cluster(1, 2, memory_bytes=2.0**34)
    asked = {"schedule": "gpipe", "runtime": "maxtext"}
    free, made = (plan_model(model, cluster, 1, 16, 4, runs_on=name, **asked) for name in ("", "maxtext"))
    assert len(free.plan.stages) == 2  # five layers on two devices, which MaxText would have to halve
    assert len(made.plan.stages) == 1
    more = made.plan.step_s / free.plan.step_s - 1
    assert more > 0
    assert any(f"that maxtext can run it costs {more:.1%}" in note for note in made.plan.notes)


def test_a_traced_model_is_refused_at_once_for_all_but_alpa():
    def step(batch_size):
        raise AssertionError("it was traced")

    for model, name in ((step, "step"), ("my_flax:plain", "my_flax:plain")):
        with pytest.raises(ValueError, match=f"runs_on is 'megatron', but must be 'alpa' for {name}, whose layers"):
            plan_model(model, example_cluster(1, 2), batch=4, runs_on="megatron")
    with pytest.raises(AssertionError, match="it was traced"):
        plan_model(step, example_cluster(1, 2), batch=4, runs_on="alpa")


def test_a_schedule_that_the_framework_has_not_is_refused():
    with pytest.raises(ValueError, match="schedule is 'zb_v', but must be one that megatron has"):
        plan_model(SIZES.text, example_cluster(1, 2), batch=4, runs_on="megatron", schedule="zb_v")
    with pytest.raises(ValueError, match="strategy is 'megatron', but must be 'dejavu' where the plan is for maxtext"):
        plan_model(SIZES.text, example_cluster(1, 2), batch=4, runs_on="maxtext", strategy="megatron")
    with pytest.raises(ValueError, match="runs_on is 'horovod', but must be one of 'alpa'"):
        restriction("horovod", 4, "gpt-39b")


def test_a_transformer_is_cut_at_its_blocks():
    from alpa_dejavu import layers

    gpt = Transformer(32, 3, 4, 64, 8, gated=False, rotary=False, rms_norm=False, biases="all", tied=True)
    for size in (SIZES, gpt):
        traced = layers.trace(size.text, batch=2)
        cut = layers.cut_into_layers(traced, "auto")
        assert len(cut.forward) == size.num_layers == layers.most_layers(traced, 5)
        assert len({len(jaxpr.eqns) for jaxpr in cut.forward[1:-1]}) == 1
        with pytest.raises(ValueError, match=f"num_layers is 2, but must be {size.num_layers}"):
            layers.cut_into_layers(traced, 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # Llama-2-7B, GPT-2 and Mixtral-8x7B, as published with the models.
        ("transformer:hidden=4096,blocks=32,heads=32,vocabulary=32000,sequence=64,feed_forward=11008", 6_738_415_616),
        (
            "transformer:hidden=768,blocks=12,heads=12,vocabulary=50257,sequence=1024,gated=no,rotary=no,rms_norm=no,"
            "biases=all,tied=yes",
            124_439_808,
        ),
        (
            "transformer:hidden=4096,blocks=32,heads=32,vocabulary=32000,sequence=64,kv_heads=8,feed_forward=14336,"
            "experts=8,experts_per_token=2",
            46_702_792_704,
        ),
    ],
)
def test_parameters_are_as_many_as_published(text, number):
    assert transformer_size(text).num_parameters == number


def test_parameters_are_those_of_the_train_step():
    from alpa_dejavu import layers

    small = Transformer(64, 2, 4, 128, 16, kv_heads=2, feed_forward=96, num_experts=4, experts_per_token=2,
                        shared_feed_forward=32, qk_norm=True, biases="qkv")  # fmt: skip
    assert layers.trace(small.text, batch=2).num_parameters == small.num_parameters


def test_families_are_kept_by_every_slicer():
    problem = random_problem(np.random.default_rng(5), num_layers=4, num_devices=4)
    families = np.zeros((2, *problem.costs_s.shape[2:]), bool)
    families[0, 1], families[1, 2] = True, True
    both = dataclasses.replace(problem, families=families)
    stages = Dynamic().slice(both).stages
    assert len({stage.submesh for stage in stages}) == 1
    assert both.total_s(Dynamic().slice(problem).stages) >= both.total_s(stages)
    with pytest.raises(ValueError, match=r"families is \(1, 2\), but must be \(F, "):
        dataclasses.replace(problem, families=np.ones((1, 2), bool))


def test_tensor_parallel_devices_divide_heads():
    odd = Transformer(96, 2, 6, 64, 8, kv_heads=3)
    space = SpaceRules(restriction=Restriction(RUNTIMES["megatron"], 8, odd)).space(example_cluster(1, 4), 4)
    assert {config.tensor_parallel for row in space.configs for config in row if config} == {1}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"runtime": "fsdp", "tensor": 2}, "tensor is 2, but must be 1 under fsdp, which hasn't that"),
        ({"runtime": "megatron", "strategy": "megatron", "context": 2}, "must be 1 by the strategy 'megatron'"),
        ({"strategy": "alpa", "tensor": 2}, "tensor is 2, but must be 1 by the strategy 'alpa', which has"),
        ({"runtime": "fsdp", "zero": (3,), "micro_batches": 4}, "zero is 3, but no stage on .* has replicas"),
        ({"runs_on": "deepspeed", "precision": "float8"}, "deepspeed can't train .*: precision is 'float8', but must"),
    ],
)
def test_what_a_framework_hasnt_is_refused_by_its_name(asked, reason):
    size = Transformer(64, 2, 4, 128, 32, precision=asked.pop("precision", "bfloat16"))
    with pytest.raises((ValueError, NoPlanError), match=reason):
        plan_model(size.text, "dgx-h100", batch=4, cache=False, **asked)
