"""What two plans differ in: costs are means over an order in which differences are made and its reverse, and add up."""

import dataclasses
import itertools

import pytest

from alpa_dejavu.plans.difference import differences, shares
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NoPlanError, PricedBy, StepCorrection
from plans import example_plan, hardware, stage, whole_plan

FIRST = example_plan()
SECOND = example_plan(
    stages=(stage((0, 0), zero=3), stage((1, 1)), stage((2, 3), remat="layer")),
    num_micro_batches=8,
    schedule="gpipe",
)


def price(plan):
    """A made-up time that depends on everything that may differ."""
    figures = [plan.num_micro_batches, len(plan.schedule)]
    for n, one in enumerate(plan.stages, 1):
        figures += [n * one.num_layers, 3 * n * one.zero, 5 * n * len(one.remat)]
    return float(sum(figures))


def test_equal_plans_do_not_differ_and_without_prices_no_cost_is_told():
    assert {row.cost_s for row in differences(FIRST, SECOND)} == {None}
    assert differences(FIRST, FIRST, price) == ()
    assert differences(FIRST, dataclasses.replace(FIRST, step_s=9.0, planning_s={}), price) == ()


def test_every_difference_is_named_and_the_costs_add_up():
    found = differences(FIRST, SECOND, price)
    assert [one.what for one in found] == ["micro-batch", "schedule", "stages", "recompute", "ZeRO"]
    assert (found[0].first, found[0].second, found[0].cost_s) == ("4 to 8 x 4", "2 x 8", 4.0)
    assert (found[1].first, found[1].second, found[1].cost_s) == ("1f1b", "gpipe", 1.0)
    assert found[2].first == "3 layers on 1x2 (tensor 1, data 2), 1 layer on 1x2 (tensor 2, data 1)"
    assert found[2].second == "2 times 1 layer on 1x2 (tensor 1, data 2), 2 layers on 1x2 (tensor 1, data 2)"
    assert found[3].second == "2 times none, full"
    assert sum(one.cost_s for one in found) == pytest.approx(price(SECOND) - price(FIRST))


@pytest.mark.parametrize("other", [{"model": "bert"}, {"cluster": "2 x p3.8xlarge"}, {"batch": 64}])
def test_other_problems_are_named_and_not_priced(other):
    def never(plan):
        raise AssertionError("it was priced")

    found = differences(FIRST, dataclasses.replace(SECOND, **other), never)
    assert found[0].what in other
    assert len(found) == 6


def changed(plan, **fields):
    """The plan with stages that have these fields, a value for each stage."""
    stages = tuple(
        dataclasses.replace(one, **{name: values[n] for name, values in fields.items()})
        for n, one in enumerate(plan.stages)
    )
    return dataclasses.replace(plan, stages=stages)


OTHER = changed(
    dataclasses.replace(FIRST, num_micro_batches=8, schedule="gpipe"),
    layers=[(0, 0), (1, 3)],
    remat=["layer", "none"],
    zero=[3, 2],
    logical_mesh=[(1, 2), (2, 1)],
    hosts=[("p3.16xlarge-1",), ("p3.16xlarge-0",)],
    options=[{}, {"allow_mixed_mesh_shape": True}],
)


def unlike(plan):
    """A made-up time in which whatever differs makes everything else dearer."""
    factors = [1.0 + 0.1 * plan.num_micro_batches, len(plan.schedule)]
    for n, one in enumerate(plan.stages, 1):
        factors += [n + one.num_layers, 1 + n * one.zero, n + len(one.remat), 1 + one.logical_mesh[0] / n]
        factors += [1.0 + int(one.hosts[0][-1]) / n, 2.0 + len(one.options)]
    total = 1.0
    for factor in factors:
        total *= factor
    return total


@pytest.mark.parametrize("other", [SECOND, OTHER], ids=["few", "many"])
def test_exchanging_the_plans_negates_the_costs(other):
    step_s = price if other is SECOND else unlike
    there, back = differences(FIRST, other, step_s), differences(other, FIRST, step_s)
    assert [(one.what, one.first, one.second, one.cost_s) for one in there] == [
        (one.what, one.second, one.first, -one.cost_s) for one in back
    ]
    assert sum(one.cost_s for one in there) == pytest.approx(step_s(other) - step_s(FIRST))


def test_a_cost_is_the_mean_of_the_listed_order_and_its_reverse():
    values = {frozenset(chosen): float(n**3 + 7 * n) for n, chosen in enumerate(subsets(4))}
    found = shares(4, values.__getitem__)
    for n in range(4):
        before, behind = frozenset(range(n)), frozenset(range(n + 1, 4))
        adds = [values[others | {n}] - values[others] for others in (before, behind)]
        assert found[n] == pytest.approx(sum(adds) / 2)


def subsets(count):
    return [made for size in range(count + 1) for made in itertools.combinations(range(count), size)]


def outlined(outline, **more):
    """A plan of an outline, as a training framework's user sets it, on four hosts of 8 devices."""
    stages = tuple(outline.stages({f"h{n}": 8 for n in range(4)}))
    return dataclasses.replace(
        FIRST, stages=stages, schedule=outline.schedule, num_micro_batches=outline.num_micro_batches,
        batch=outline.batch, layer_option="manual", **more,
    )  # fmt: skip


def test_what_a_user_sets_is_a_row_each_and_plans_in_between_keep_devices_and_batch():
    by = PricedBy("kernels", "nccl", runtime="megatron+none", attention="plain")
    text = "transformer:hidden=64,blocks=16,heads=4,vocabulary=128,sequence=16"
    slow = Outline(128, 16, "1f1b", 4, 4, (8, 8), ("layer", "layer"), 2, context_parallel=2)
    fast = Outline(128, 16, "interleaved", 4, 2, (2,) * 8, ("selective",) * 8, 2)
    first = outlined(slow, priced_by=by, model=text)
    second = outlined(
        fast, priced_by=dataclasses.replace(by, runtime="megatron", attention=""), model=f"{text},precision=float8"
    )
    seen = []

    def step_s(plan):
        outline = Outline.of(plan)
        seen.append(plan)
        figures = outline.tensor_parallel, outline.pipeline, outline.micro_batch, outline.context_parallel
        words = len(plan.model), len(plan.priced_by.runtime), len(plan.priced_by.attention), len(outline.remat[0])
        return float(sum(figures) + sum(words) * figures[0])

    rows = differences(first, second, step_s)
    assert [(row.what, row.first, row.second) for row in rows] == [
        ("tensor", "4", "2"), ("context", "2", "1"), ("pipeline", "2", "4"), ("schedule", "1f1b", "interleaved"),
        ("micro-batch", "4 x 16", "2 x 16"), ("recompute", "full", "selective"), ("precision", "as usual", "float8"),
        ("overlap", "none", "the runtime's"), ("attention", "plain", "the runtime's"),
    ]  # fmt: skip
    assert sum(row.cost_s for row in rows) == pytest.approx(step_s(second) - step_s(first))
    assert {(plan.num_devices, plan.batch, plan.num_layers) for plan in seen} == {(32, 128, 18)}
    assert len(seen) == 2 * len(rows) + 2


def test_another_order_of_the_same_hosts_hides_no_setting():
    outline = Outline(128, 16, "interleaved_4", 8, 2, (2,) * 8, ("layer",) * 8)
    plan, changed_to = outlined(outline), {"tensor_parallel": 1, "data_parallel": 16, "remat": ("none",) * 8}
    other = dataclasses.replace(outline, num_micro_batches=8, **changed_to)
    turned = dataclasses.replace(outlined(other), stages=tuple(other.stages({f"h{n}": 8 for n in (2, 3, 0, 1)})))
    rows = differences(plan, turned, lambda plan: float(len(plan.stages[0].remat) + plan.stages[0].logical_mesh[0]))
    assert [(row.what, row.second) for row in rows] == [
        ("tensor", "1"), ("recompute", "none"), ("order of hosts", "h[2-3], h[0-1]"),
    ]  # fmt: skip
    assert [row.cost_s for row in rows] == [8.0, -1.0, 0.0]


def test_other_chunks_of_stages_that_no_user_sets_so_hide_neither_remat_nor_zero():
    plan = changed(outlined(Outline(128, 16, "interleaved", 8, 2, (4,) * 4, ("none",) * 4)), zero=[0, 2, 0, 2])
    folded = outlined(Outline(128, 16, "interleaved_4", 8, 2, (2,) * 8, ("layer",) * 8, 2))
    rows = differences(plan, folded, lambda plan: float(sum(len(on.remat) + on.zero for on in plan.stages)))
    assert [row.what for row in rows] == ["schedule", "recompute", "ZeRO"]
    assert sum(row.cost_s for row in rows) == 8 * 7 - (4 * 4 + 4)


def test_stages_that_no_user_sets_so_are_told_apart_by_their_own_differences():
    outline = Outline(128, 16, "1f1b", 4, 4, (8, 8), ("none", "none"))
    plan = outlined(outline)
    uneven = changed(plan, zero=[0, 2])
    assert [row.what for row in differences(plan, uneven)] == ["ZeRO"]
    assert [row.what for row in differences(plan, outlined(dataclasses.replace(outline, blocks=(9, 7))))] == [
        "blocks of stages"
    ]


def test_auto_sharding_options_are_differences_of_plans_that_users_set_too():
    plan = outlined(Outline(128, 16, "1f1b", 4, 4, (8, 8), ("none", "none")))
    usual = plan.stages[0].options
    other = changed(plan, options=[usual, {**usual, "allow_all_gather": False}])
    (row,) = differences(plan, other, lambda one: sum(3.0 * len(stage.options) for stage in one.stages))
    assert (row.what, row.second, row.cost_s) == (
        "auto-sharding", "force_batch_dim_to_mesh_dim=0, allow_all_gather=False force_batch_dim_to_mesh_dim=0", 3.0,
    )  # fmt: skip
    assert not differences(other, other)


def test_a_batch_that_is_not_divided_evenly_has_no_outline_but_differences():
    outline = Outline(128, 16, "1f1b", 4, 4, (8, 8), ("none", "none"))
    plan = dataclasses.replace(outlined(outline), batch=96)
    with pytest.raises(ValueError, match="a batch of 96 samples can't be cut into 16 micro-batches on 4"):
        Outline.of(plan)
    (row,) = differences(plan, changed(plan, remat=["layer", "layer"]), price)
    assert (row.what, row.first, row.second) == ("recompute", "2 times none", "2 times full")


def test_whether_alpa_could_run_them_is_nothing_to_plans_for_another_framework():
    outline = Outline(128, 16, "1f1b", 4, 4, (8, 8), ("none", "none"), context_parallel=2)
    by = PricedBy("kernels", "nccl", runtime="megatron+none", runs_on="megatron")
    plans = [
        outlined(
            dataclasses.replace(outline, context_parallel=ways, num_micro_batches=8 * ways), priced_by=by,
            runs_on_alpa=ways == 1,
        )
        for ways in (2, 1)
    ]  # fmt: skip
    (row,) = differences(*plans, lambda plan: float(plan.stages[0].context_parallel))
    assert (row.what, row.first, row.second, row.cost_s) == ("context", "2", "1", -1.0)


@pytest.mark.parametrize("error", [ValueError, NoPlanError])
def test_orders_by_a_plan_that_cannot_be_estimated_are_left_out(error):
    three = dataclasses.replace(changed(FIRST, zero=[3, 2]), num_micro_batches=8, schedule="gpipe")

    def step_s(plan):
        if plan.num_micro_batches == 8 and plan.schedule == "1f1b":
            raise error("it doesn't fit")
        return price(plan)

    there, back = differences(FIRST, three, step_s), differences(three, FIRST, step_s)
    assert sum(one.cost_s for one in there) == pytest.approx(price(three) - price(FIRST))
    assert [one.cost_s for one in there] == [-one.cost_s for one in back]

    def never(plan):
        if plan not in (FIRST, three):
            raise error("it doesn't fit")
        return price(plan)

    assert {one.cost_s for one in differences(FIRST, three, never)} == {None}
    with pytest.raises(error, match="it doesn't fit"):
        differences(FIRST, SECOND, never)


def test_other_prices_and_corrections_are_differences_too():
    plan = whole_plan()
    by = dataclasses.replace(plan.priced_by, communication="alpha-beta", slicer="mcmc")
    other = dataclasses.replace(plan, priced_by=by, correction=StepCorrection(1.5, 0.1, 3, 1))

    def step_s(one):
        return len(one.priced_by.communication) * (one.correction.factor if one.correction else 1.0)

    models, correction = differences(plan, other, step_s)
    assert (models.what, models.first, models.second) == ("communication model", "links", "alpha-beta")
    assert (correction.what, correction.first, correction.second) == ("correction", "none", "times 1.5")
    assert models.cost_s + correction.cost_s == pytest.approx(1.5 * len("alpha-beta") - len("links"))
    # An old plan doesn't say: it is priced as the other one.
    old = dataclasses.replace(plan, priced_by=None, num_micro_batches=8)
    assert [one.cost_s for one in differences(plan, old, step_s)] == [0.0]


def test_plans_for_other_hosts_are_other_problems():
    plan, other = whole_plan(), whole_plan(hardware=hardware(2, 8))
    (row,) = differences(plan, other, None)
    assert row.what == "hosts of the cluster"
    (row,) = differences(plan, dataclasses.replace(plan, runs_on_alpa=False), price)
    assert (row.what, row.first, row.second, row.cost_s) == ("runs on Alpa", "yes", "no", None)


def test_degrees_that_changed_are_named():
    other = changed(FIRST, context_parallel=[2, 2], expert_parallel=[2, 2], expert_tensor=[1, 1], sharded=[0, 2])
    assert [(row.what, row.first, row.second) for row in differences(FIRST, other)] == [
        ("context", "2 times 1", "2 times 2"),
        ("expert", "2 times 1", "2 times 2 (tensor 1)"),
        ("shard", "2 times all", "all, 2"),
    ]


def test_a_share_of_the_blocks_that_is_recomputed_is_one_text_for_all_stages():
    first = Outline(8, 4, "1f1b", 1, 1, (5, 5), ("none", "none"))
    second = dataclasses.replace(first, remat=("layer", "layer"), remat_share=0.4)
    plans = [
        whole_plan(batch=8, layer_option="manual", hardware=hardware(1, 2), stages=tuple(own.stages({"host0": 2})))
        for own in (first, second)
    ]
    (row,) = differences(*plans)
    assert (row.what, row.first, row.second) == ("recompute", "none", "full of 40% of the blocks")
