"""Plans under any schedule: against brute force, through files and other doors, and who can run them."""

import dataclasses
import itertools
import json

import pytest

from alpa_dejavu.costs.runtime import RuntimeProfile
from alpa_dejavu.planning import Searched, estimate, given_stages, plan, plan_model
from alpa_dejavu.planning.changed.replanning import fallback
from alpa_dejavu.planning.changed.state_migration import devices_of, layer_state, moves
from alpa_dejavu.planning.given.other_schedules import improved_order, with_better_schedules
from alpa_dejavu.planning.search._polish import ANY_SCHEDULE, under
from alpa_dejavu.planning.search.restriction import restriction
from alpa_dejavu.planning.search.runtimes import RUNTIMES, check_schedule_of, runtimes_of, schedules_of
from alpa_dejavu.plans import plan_data, read_plan, write_plan
from alpa_dejavu.plans.difference import differences
from alpa_dejavu.plans.table import fullest_parts
from alpa_dejavu.problem import Cluster, Device, Link, NoPlanError, Operator, Operators, Run
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.simulation import StageTimes, simulate, step_seconds
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.slicing import Dynamic
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, planned, space, task_of

FAST = Link(1e-9, 1e15)
SCHEDULES = ("1f1b_overlap_friendly", "interleaved", "zb_h1", "zb_v", "v_half", "v_min", "dualpipe_v")


def splitting(seconds, activation_bytes=1.0):
    """A chain of layers that take such forward times, and backward, half by inputs and half by weights, twice that."""

    def product(flop, by_weight=False):
        return Operator("dot", "dot_general", (), (), "float32", flop, by_weight=by_weight)

    model = chain(len(seconds), activation_bytes=activation_bytes, exchanged=())
    layers = [
        dataclasses.replace(
            layer,
            forward=Operators.of([product(1e12 * s)]),
            backward=Operators.of([product(1e12 * s), product(1e12 * s, by_weight=True)]),
        )
        for layer, s in zip(model.layers, seconds, strict=True)
    ]
    return dataclasses.replace(model, layers=tuple(layers))


def cluster_of(hosts, memory_bytes=2.0**30):
    device = Device("example", memory_bytes, {"float32": 1e12}, 1e15, 1e15, dispatch_s=0.0)
    return Cluster.uniform("example", [f"host-{n}" for n in range(hosts)], device, 1, FAST, FAST)


def made(schedule, seconds, size, hosts, others=(), memory_bytes=2.0**30, activation_bytes=1.0, **more):
    return planned(
        splitting(seconds, activation_bytes), cluster_of(hosts, memory_bytes), space(1, 1), Run(size, schedule),
        chooser=Searched("all"), other_schedules=others, **more,
    )  # fmt: skip


def brute_force(schedule, seconds, size, hosts):
    """The shortest simulated step over all cuts of layers into the schedule's stages, a device each host."""
    chunks = Run(size, schedule).form.chunks
    count, best = hosts * chunks, float("inf")
    for inner in itertools.combinations(range(1, len(seconds)), count - 1):
        cut = [0, *inner, len(seconds)]
        forward = [sum(seconds[a:b]) for a, b in itertools.pairwise(cut)]
        stages = [StageTimes(f, 2 * f, backward_weight_s=f) for f in forward]
        best = min(best, step_seconds(stages, size, schedule))
    return best


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seconds", [(1.0,) * 8, (1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5)])
def test_no_cut_is_much_better_than_the_plans(schedule, seconds):
    found = made(schedule, seconds, 6, 3)
    assert found.plan.schedule == schedule
    assert len(found.plan.on_submeshes) == 3
    once = max(stage.per_step_s for stage in found.plan.stages)
    assert found.plan.step_s <= brute_force(schedule, seconds, 6, 3) * 1.04 + once


def test_all_schedules_together_are_no_worse_than_each():
    seconds = (1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5)
    together = made("1f1b", seconds, 6, 3, others=ANY_SCHEDULE[1:]).plan
    for schedule in SCHEDULES:
        assert together.step_s <= made(schedule, seconds, 6, 3).plan.step_s * (1 + 1e-9)
    assert not together.runs_on_alpa


def test_a_schedule_that_keeps_less_is_chosen_where_memory_binds():
    """Eight micro-batches of 1 MiB a layer: 1F1B's first stage keeps 4 x 4 MiB, V-Min's devices about half."""
    seconds, per_layer = (1.0,) * 16, 2.0**20
    kept = {
        name: max(s.memory_bytes for s in made(name, seconds, 8, 4, activation_bytes=per_layer).plan.stages)
        for name in ("zb_h1", "v_min")
    }
    between = (kept["v_min"] + kept["zb_h1"]) / 2
    tight = {"memory_bytes": between, "activation_bytes": per_layer}
    with pytest.raises(NoPlanError):
        made("zb_h1", seconds, 8, 4, **tight)
    found = made("zb_h1", seconds, 8, 4, others=("v_min", "zb_v"), **tight).plan
    assert found.schedule == "v_min"
    assert max(stage.memory_bytes for stage in found.stages) <= between


def test_what_was_cut_for_less_memory_is_not_run_with_more():
    """ZB-H1 keeps 4 micro-batches at most, GPipe all 16: a cut for the one doesn't fit the other."""
    model = splitting((1.0,) * 8, 2.0**20)
    kept = max(s.memory_bytes for s in made("zb_h1", (1.0,) * 8, 16, 4, activation_bytes=2.0**20).plan.stages)
    tight, roomy = (
        costs_of(model, cluster_of(4, size), space(1, 1), Run(16, "zb_h1")).sliced(Dynamic())
        for size in (1.2 * kept, 2.0**30)
    )
    assert under(roomy, "gpipe").run.schedule == "gpipe"
    assert under(tight, "gpipe") is None
    assert under(tight, "1f1b").run.schedule == "1f1b"


def test_a_plan_with_chunks_goes_through_its_file_and_estimates_to_the_same(tmp_path):
    found = made("zb_v", (1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5), 6, 3)
    write_plan(found.plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == found.plan
    assert (again.num_devices, again.submesh_of) == (3, (0, 1, 2, 2, 1, 0))
    assert sum(again.devices_of_hosts.values()) == 3
    model, cluster = found.model, found.cluster
    estimated = estimate(model, cluster, Run(6, "zb_v"), given_stages(again)).plan
    assert estimated.step_s == pytest.approx(again.step_s)
    assert [s.memory_bytes for s in estimated.stages] == [s.memory_bytes for s in again.stages]
    assert simulate(plan_times(again), 6, "zb_v").step_s == pytest.approx(again.step_s)


def test_stages_that_can_not_share_submeshes_are_named(tmp_path):
    data = plan_data(made("zb_v", (1.0,) * 6, 6, 3).plan)
    other = {"hosts": data["stages"][1]["hosts"]}
    elsewhere = data | {"stages": [*data["stages"][:-1], data["stages"][-1] | other]}
    fewer = data | {"schedule": "interleaved_4"}
    for wrong, said in ((elsewhere, r"stages\[5\].hosts is .* submesh of stages\[0\]"), (fewer, "4 on each submesh")):
        (tmp_path / "plan.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=said):
            read_plan(tmp_path / "plan.json")
    with pytest.raises(ValueError, match="must be a multiple of 4, as many as interleaved_4 has"):
        dataclasses.replace(made("zb_v", (1.0,) * 6, 6, 3).plan, schedule="interleaved_4")


SIZES = "transformer:hidden=64,blocks=4,heads=4,vocabulary=128,sequence=16"


def test_who_can_run_a_plan_is_said():
    traced, folded = (made(name, (1.0,) * 6, 6, 3).plan for name in ("1f1b", "zb_v"))
    assert [name for name, why in runtimes_of(traced).items() if not why] == ["alpa"]
    assert runtimes_of(traced)["megatron"] == "its layers aren't the blocks of a transformer"
    precise = dataclasses.replace(traced, layer_option="manual", model=f"{SIZES},precision=float8")
    assert runtimes_of(precise)["deepspeed"].startswith("precision is 'float8', but must be 'bfloat16'")
    assert runtimes_of(precise)["alpa"] == "precision is 'float8', but must be left out"
    gathered = dataclasses.replace(precise, model=f"{precise.model},gather=fp8")
    assert runtimes_of(gathered)["torchtitan"] == "gather is 'fp8', but must be left out"
    # Jobs of earlier releases gather so, and what would be faster is looked for as what they can run.
    assert restriction("torchtitan", 8, gathered.model) is not None
    plain, folded = (dataclasses.replace(plan, layer_option="manual") for plan in (traced, folded))
    others = {"maxtext": "no 1f1b in a pipeline there", "galvatron": "3 stages aren't a power of two"}
    assert runtimes_of(plain) == {**dict.fromkeys(RUNTIMES, ""), **others}
    assert [name for name, why in runtimes_of(folded).items() if not why] == []
    assert runtimes_of(folded)["torchtitan"] == "no zb_v there, as torch.compile goes with no split backward passes"
    shared = dataclasses.replace(plain, stages=tuple(dataclasses.replace(stage, zero=3) for stage in plain.stages))
    assert runtimes_of(shared)["deepspeed"] == "stage 0 has ZeRO-3 in a pipeline"
    last = dataclasses.replace(plain.stages[-1], remat="layer")
    unlike = dataclasses.replace(plain, stages=(*plain.stages[:-1], last))
    assert runtimes_of(unlike)["megatron"] == "stages 0 and 2 have unlike remat"
    assert not runtimes_of(unlike)["deepspeed"]
    own = (*(dataclasses.replace(stage, own_remat=True) for stage in plain.stages[:-1]), plain.stages[-1])
    assert not runtimes_of(dataclasses.replace(plain, stages=own))["megatron"], "a head has no remat of the model's own"
    unmendable = dataclasses.replace(unlike, layer_option=traced.layer_option)
    assert runtimes_of(unmendable)["megatron"] == runtimes_of(traced)["megatron"], "no other plan would do"
    for name, limits in RUNTIMES.items():
        assert not any(schedule_form(schedule).splits for schedule in limits.schedules), name
    with pytest.raises(ValueError, match=r"torchtitan has: 1f1b, gpipe, interleaved \(no zb_v there, as torch.compile"):
        check_schedule_of("torchtitan", "zb_v")
    with pytest.raises(ValueError, match="schedule is 'zb_v', but must be one that megatron has: 1f1b, interleaved"):
        check_schedule_of("megatron", "zb_v")
    with pytest.raises(ValueError, match="runtime is 'horovod', but must be one of 'alpa'"):
        schedules_of("horovod")


def test_a_better_schedule_is_said_beside_a_plan_for_alpa():
    task = task_of(
        splitting((1.0,) * 8), cluster_of(4), space(1, 1), Run(4), chooser=Searched("all"), other_schedules=()
    )
    found = plan(task, more=(with_better_schedules,)).plan
    assert found.schedule == "1f1b"
    best = min(made(name, (1.0,) * 8, 4, 4).plan.step_s for name in ("zb_h1", "zb_v", "interleaved"))
    note = found.notes[-1]
    assert "which Alpa hasn't, would make" in note
    assert f"{100 * (1 - best / found.step_s):.0f} % shorter" in note


def test_an_improved_order_is_no_longer_and_within_its_gap():
    found = made("zb_v", (1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5), 6, 3)
    order = improved_order(found)
    assert order.step_s <= found.plan.step_s * (1 + 1e-9)
    assert order.floor_s <= order.step_s <= order.floor_s * (1 + order.gap) * (1 + 1e-9)
    assert order.schedule.device_of == found.plan.submesh_of
    inferred = planned(chain(4, training=False, exchanged=()), cluster_of(2), space(1, 1), Run(4, "inference"))
    with pytest.raises(ValueError, match=r"schedule is inference .* leave the order out"):
        improved_order(inferred)


def test_numbers_of_submeshes_that_a_schedule_can_not_have_are_passed_over():
    """Six micro-batches on four devices: interleaved 1F1B needs a multiple, so it is on three of them or on two."""
    found = planned(
        splitting((1.0,) * 16), cluster_of(4), dataclasses.replace(space(1, 1)), Run(6, "interleaved"),
        chooser=Searched("any"),
    )  # fmt: skip
    assert len(found.plan.on_submeshes) == 3
    with pytest.raises(NoPlanError, match="zb_v isn't possible on example: on 2 of its devices 3 layers are too few"):
        made("zb_v", (1.0,) * 3, 4, 2)


AUTO = {"others": ANY_SCHEDULE[1:]}


@pytest.mark.parametrize(
    ("seconds", "size", "hosts"),
    [((1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5) * 2, 16, 5), ((1.0, 0.5, 1.5, 1.0, 0.5, 1.0, 1.5, 2.0), 4, 4)],
)
def test_what_is_run_without_a_host_has_the_plans_schedule(tmp_path, seconds, size, hosts):
    found = made(ANY_SCHEDULE[0], seconds, size, hosts, **AUTO, contingencies=True).plan
    assert found.contingencies
    for lost in found.contingencies:
        other = fallback(found, lost).plan
        assert simulate(plan_times(other), size, found.schedule).step_s == pytest.approx(other.step_s, rel=1e-3)
    assert read_plan(write_plan(found, tmp_path / "plan.json")) == found


def test_plans_with_other_chunks_differ_in_their_schedule_and_are_priced():
    model, cluster = splitting((1.0,) * 12), cluster_of(3)
    first, second, plain = (made(name, (1.0,) * 12, 6, 3).plan for name in ("zb_h1", "zb_v", "1f1b"))

    def step_s(plan_):
        run = Run(plan_.num_micro_batches, plan_.schedule)
        return estimate(model, cluster, run, given_stages(plan_)).plan.step_s

    for one, other in ((first, second), (plain, second), (plain, first)):
        rows = differences(one, other, step_s)
        assert rows[0].what == "schedule"
        assert sum(row.cost_s for row in rows) == pytest.approx(step_s(other) - step_s(one))


def test_pipedream_and_a_runtime_of_ones_own():
    model, cluster = splitting((1.0,) * 8), cluster_of(2)
    asked = {"batch": 8, "micro_batches": 8, "zero": (0,), "remat": ("none",)}
    with pytest.raises(ValueError, match="schedule is 'pipedream', but must be one that updates the weights once"):
        plan_model(model, cluster, schedule="pipedream", **asked)
    free = plan_model(model, cluster, schedule="auto", **asked).plan
    mine = plan_model(model, cluster, schedule="auto", runtime=RuntimeProfile("mine"), **asked).plan
    assert mine.step_s == pytest.approx(free.step_s)
    megatron = plan_model(model, cluster, schedule="auto", runtime="megatron", **asked).plan
    assert megatron.schedule.partition("_")[0] in schedules_of("megatron")


def test_memory_is_that_of_all_stages_on_a_submesh():
    found = made("zb_v", (1.0,) * 6, 6, 3, activation_bytes=2.0**20)
    kept = named_schedule("zb_v", 6, 6).peak_chunks
    for n, submesh in enumerate(found.plan.submesh_of):
        on = [s for s, of in zip(found.plan.stages, found.plan.submesh_of, strict=True) if of == submesh]
        by_hand = sum(s.resident_bytes for s in on) + kept[submesh] * 2.0**20
        assert found.plan.stages[n].memory_bytes == pytest.approx(by_hand + on[0].temporary_bytes, rel=0.01)


@pytest.mark.parametrize("runtime", ["megatron", None])
def test_the_parts_of_memory_are_those_of_all_stages_on_a_submesh(runtime):
    """By hand: a block has 3 hidden² for queries, keys and values, hidden² behind them and 3 x hidden x inner, with its
    two norms; the first stage has the embedding, and the last one the final norm and the head. Of weights in bfloat16
    Megatron keeps 2 bytes, a gradient in float32, and Adam's moments with a copy.
    """
    hidden, blocks, inner, vocabulary = 512, 8, 2048, 1024
    text = f"transformer:hidden={hidden},blocks={blocks},heads=8,feed_forward={inner},vocabulary={vocabulary}"
    plan_ = plan_model(
        f"{text},sequence=256,tied=no,gated=yes,biases=none", "dgx-h100", batch=16, micro_batches=8, zero=(0,),
        remat=("none",), schedule="interleaved", runtime=runtime, layers=blocks + 2,
    ).plan  # fmt: skip
    assert len(plan_.stages) > len(plan_.on_submeshes)
    fullest = fullest_parts(plan_)
    assert sum(num_bytes for _, num_bytes in fullest.parts) == pytest.approx(plan_.stages[fullest.stage].memory_bytes)
    on_it = [plan_.stages[n] for n in plan_.stages_on[plan_.submesh_of[fullest.stage]]]
    if runtime is None:
        assert dict(fullest.parts)["weights, gradients and optimizer's states"] == sum(s.resident_bytes for s in on_it)
        return
    block = 4 * hidden**2 + 3 * hidden * inner + 2 * hidden
    layers = [vocabulary * hidden, *[block] * blocks, vocabulary * hidden + hidden]
    count = sum(layers[n] for s in on_it for n in range(s.layers[0], s.layers[1] + 1)) / on_it[0].tensor_parallel
    by_hand = {"weights": 2 * count, "gradients": 4 * count, "optimizer's states": 12 * count}
    assert {name: dict(fullest.parts)[name] for name in by_hand} == pytest.approx(by_hand, rel=1e-9)


def test_the_best_plan_without_a_pipeline_is_among_the_next_best():
    """Eight layers of parameters that take a second each to be exchanged once a step, where stages share them."""
    model = chain(8, 1e10, parameter_bytes=1e9, exchanged=(1e3,))
    cluster = example_cluster(2, 2, memory_bytes=2.0**40)
    found = plan_model(model, cluster, batch=16, micro_batches=8, schedule="auto", cache=False)
    assert [len(other.plan.stages) > 1 for other in found.runners_up] == [True, True, True, False]
    *near, last = found.runners_up
    assert last.why.endswith("; the best without a pipeline")
    assert (last.plan.num_devices, last.plan.step_s > max(other.plan.step_s for other in near)) == (4, True)
    host = plan_model(model, example_cluster(1, 2, memory_bytes=2.0**40), batch=16, micro_batches=8, pipeline=1).plan
    alone = plan_model(model, cluster, batch=16, micro_batches=8, pipeline=1, cache=False).plan
    assert (len(alone.stages), alone.step_s) == (1, pytest.approx(host.step_s))  # a host alone is faster than both


def test_no_bound_is_promised_where_none_is_known():
    for schedule in SCHEDULES:
        found = made(schedule, (1.0, 2.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.5), 6, 3).plan
        assert (found.lower_bound_s > 0) == (schedule == "1f1b_overlap_friendly")
    together = made(ANY_SCHEDULE[0], (0.5, 1.0, 1.0, 1.0, 0.5, 2.0, 1.0, 1.0), 12, 3, **AUTO).plan
    assert together.lower_bound_s <= together.step_s


def test_a_search_asks_for_numbers_of_submeshes():
    """The best plan of 40 layers on 8 hosts has 8 submeshes: half as many are 4, though it has 16 stages."""
    asked = []

    class Noting(Searched):
        def _search(self, task):
            search = super()._search(task)
            tell = search.tell

            def noting(shape, step_s, num_stages):
                asked.append((shape.stages, num_stages))
                tell(shape, step_s, num_stages)

            search.tell = noting
            return search

    found = planned(splitting((1.0,) * 40), cluster_of(8), space(1, 1), Run(16, "zb_v"), chooser=Noting("all"))
    assert len(found.plan.stages) == 16
    assert (0, 8) in asked


def test_layers_that_stay_on_a_submesh_do_not_move():
    found = made("zb_v", (1.0,) * 12, 6, 3)
    stages, cluster = found.plan.stages, found.cluster
    form = schedule_form("zb_v")
    assert devices_of(stages, form) == [{s.hosts[0]: (0, 1)} for s in stages]
    state = layer_state(found.model)
    assert moves(stages, stages, cluster, state, form=form).num_bytes == 0
    # Stages 2 and 3 share the last submesh: what one gives the other stays there.
    first, second = stages[2].layers, stages[3].layers
    moved = list(stages)
    moved[2] = dataclasses.replace(stages[2], layers=(first[0], first[1] + 1))
    moved[3] = dataclasses.replace(stages[3], layers=(second[0] + 1, second[1]))
    assert moves(stages, moved, cluster, state, form=form).num_bytes == 0


def test_costs_that_are_corrected_take_their_part_by_weight_along():
    asked = splitting((1.0,) * 6), cluster_of(3), space(1, 1), Run(6, "zb_h1")
    plain, slower = (planned(*asked, chooser=Searched("all"), factors=(factor,) * 6) for factor in (1.0, 2.0))
    for one, two in zip(plain.plan.stages, slower.plan.stages, strict=True):
        assert one.backward_weight_s == pytest.approx(one.backward_s / 2)
        assert two.backward_weight_s == pytest.approx(two.backward_s / 2)
