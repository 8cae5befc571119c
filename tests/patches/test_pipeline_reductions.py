"""Updates over several meshes: parts equal the whole, and all meshes meet in one order, for drawn updates too."""

import itertools
import threading
from collections import defaultdict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p, slice_apply_gradient
from alpa.pipeline_parallel.runtime_emitter import (
    OverlapFriendlyPipelineInstEmitter,
    PipelineInstEmitter,
    PipelineInstEmitterHelper,
)
from alpa.pipeline_parallel.schedules import (
    GpipeSchedule,
    OverlapFriendlyPipeDreamSchedule,
    PipeDreamFlush,
    gen_dependency_with_stages,
)
from alpa.util import gensym
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_stock_jax._mesh_all_reduce import MeshAllReduce, opaque
from alpa_stock_jax._ray_mailbox import Group
from alpa_stock_jax._ray_tiles import TileExchange
from alpa_stock_jax.pipeline_overlap import merge_sends, plan_sends
from alpa_stock_jax.pipeline_reductions import OPERATORS


def _sliced(update, arguments, meshes, num_meshes):
    """The parts of an update by mesh, and where Alpa found each of its inputs and outputs."""
    whole = jax.make_jaxpr(update)(*arguments)
    places = dict(zip(whole.jaxpr.invars, meshes, strict=True))
    new_var = gensym([whole.jaxpr])
    parts, assignment, groups = slice_apply_gradient(
        whole, places, {}, num_meshes, 0, {}, new_var, False, [2] * num_meshes
    )
    return whole, dict(zip(assignment.values(), parts, strict=True)), groups


def _meetings(part):
    return [
        (eqn.params["number"], OPERATORS[eqn.params["type"]], tuple(eqn.params["group_meshes"]))
        for eqn in part.eqns
        if eqn.primitive is cross_mesh_allreduce_p
    ]


def _run(whole, parts, arguments):
    """The outputs of all parts, run one thread each, which meet by the real exchange with mailboxes for workers."""
    values = dict(zip(whole.jaxpr.invars, arguments, strict=True))
    workers = {}
    for mesh in parts:
        tiles = TileExchange(30.0)
        worker = SimpleNamespace(deliver=SimpleNamespace(remote=tiles.mailbox.put))
        workers[mesh] = tiles, worker
    for rank, (tiles, _) in enumerate(workers.values()):
        tiles.join(Group(str(b"all"), rank, [worker for _, worker in workers.values()], {}))
    found = {}

    def run(mesh):
        part, (tiles, _) = parts[mesh], workers[mesh]
        reduce = MeshAllReduce(1, True, tiles.gather, lambda error: None)
        known = {var: values[var] for var in part.jaxpr.invars}
        for eqn in part.eqns:
            given = [var.val if isinstance(var, jax.core.Literal) else known[var] for var in eqn.invars]
            if eqn.primitive is cross_mesh_allreduce_p:
                value = np.asarray(given[0])
                written = opaque(OPERATORS[eqn.params["type"]], "all", eqn.params["number"], value.dtype)
                results = [reduce(written, value)]
            else:
                results = eqn.primitive.bind(*given, **eqn.params)
                results = results if eqn.primitive.multiple_results else [results]
            known.update(zip(eqn.outvars, results, strict=True))
        found[mesh] = {var: known[var] for var in part.jaxpr.outvars}

    threads = [threading.Thread(target=run, args=(mesh,), daemon=True) for mesh in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.keys() == parts.keys(), "some mesh waits for ever"
    return found


def _check(update, arguments, meshes, num_meshes):
    whole, parts, groups = _sliced(update, arguments, meshes, num_meshes)
    met = [_meetings(part) for part in parts.values()]
    assert all(one == met[0] for one in met)
    assert [number for number, *_ in met[0]] == list(range(len(met[0])))
    assert groups == (((tuple(range(num_meshes))),) if met[0] else ())
    assert not met[0] or len(parts) == num_meshes
    for part in parts.values():
        calls = [eqn for eqn in part.eqns if eqn.primitive is cross_mesh_allreduce_p]
        for before, after in itertools.pairwise(calls):
            assert after.invars[1:] == before.outvars  # so XLA can't turn them round
        if calls:  # nor drop the last one
            (last,) = calls[-1].outvars
            assert any(last in eqn.invars and eqn.outvars[0] is part.jaxpr.outvars[-1] for eqn in part.eqns)
    found = _run(whole, parts, arguments)
    expected = jax.core.eval_jaxpr(whole.jaxpr, whole.consts, *arguments)
    for var, value in zip(whole.jaxpr.outvars, expected, strict=True):
        made = [outputs[var] for outputs in found.values() if var in outputs]
        assert made or isinstance(var, jax.core.Literal)
        for one in made:
            np.testing.assert_allclose(one, value, rtol=1e-5, atol=1e-6)
    return met[0]


GRADIENTS = [np.linspace(-1 - n, 2, 3, dtype=np.float32) for n in range(4)]


def _squares(values):
    return sum(jnp.sum(value**2) for value in values)


@pytest.mark.parametrize(("update", "operators"), [
    (lambda a, b, c, d: (jnp.sqrt(_squares([a, b, c, d])), a / _squares([a, b, c, d])), ["SUM", "SUM"]),
    # Over the first two, and over the last two, meshes; the sums are summed up, and one is reported by itself.
    (lambda a, b, c, d: (_squares([a, b]) + _squares([c, d]), _squares([b, c]) * d), ["SUM", "SUM"]),
    (lambda a, b, c, d: (a * _squares([c, d]),), ["SUM"]),
    # A sum that is added to itself, and one beside a number of the program.
    (lambda a, b, c, d: (d * (s := b[0] + c[0], s + s)[1] + 1e-3, b[0] + c[0] + 1e-3), ["SUM", "SUM"]),
    (lambda a, b, c, d: (jnp.minimum(jnp.minimum(a.min(), b.min()), d.max()), jnp.maximum(a.max(), c.max())),
     ["MIN", "MAX"]),
    (lambda a, b, c, d: (jnp.all(a < 9) & jnp.all(b < 1), jnp.any(c > 1) | jnp.any(d > 9)), ["AND", "OR"]),
    (lambda a, b, c, d: (jnp.sum(a > 0) + jnp.sum(b > 0) + jnp.sum(c > 0) + jnp.sum(d > 0),), ["SUM"]),
    # A norm after a clipping by another one; and what is on one mesh needs nobody.
    (lambda a, b, c, d: (_squares([x / n for n in [_squares([a, b, c, d])] for x in (a, b, c, d)]),), ["SUM"] * 2),
    (lambda a, b, c, d: (a / _squares([a]), jnp.sum(b) + 1), []),
])  # fmt: skip
@pytest.mark.parametrize("meshes", [(0, 1, 2, 3), (0, 0, 1, 1), (2, 0, 1, 1)])
def test_an_update_over_meshes_equals_the_whole(update, operators, meshes):
    met = _check(update, GRADIENTS, meshes, max(meshes) + 1)
    if meshes == (0, 1, 2, 3):
        assert [operator for _, operator, _ in met] == operators


def _of_sines(left, right):
    return jnp.sin(left * right)


SCALARS = [jnp.add, jnp.minimum, jnp.maximum, jnp.add, _of_sines, jnp.subtract]


@settings(max_examples=60, deadline=None)
@given(
    meshes=st.lists(st.integers(0, 3), min_size=2, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12),
    reported=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    scaled=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3),
)
def test_meshes_meet_in_one_order_in_drawn_updates(meshes, steps, reported, scaled):
    num_meshes = max(2, max(meshes) + 1)
    arguments = [np.linspace(-1, 1 + n / 7, 3, dtype=np.float32) for n in range(len(meshes))]

    def update(*gradients):
        numbers = [jnp.sum(jnp.sin(one)) for one in gradients]
        for operator, *places in steps:
            numbers.append(SCALARS[operator](*(numbers[place % len(numbers)] for place in places)))
        made = [one * numbers[number % len(numbers)] for one, number in
                ((gradients[which % len(gradients)], number) for which, number in scaled)]
        return [numbers[number % len(numbers)] * 1.0 for number in reported] + made

    _check(update, arguments, meshes, num_meshes)


def _stage(mesh, invars, outvars):
    return SimpleNamespace(
        mesh=mesh, invars=invars, outvars=outvars, input_sharding_specs=[None] * len(invars),
        donated_invars=[False] * len(invars),
    )  # fmt: skip


class _Tasks(dict):
    """The transfers from one mesh to another, one for each variable."""

    numbers = itertools.count()

    def __init__(self, source, target):
        super().__init__()
        self._ends = source, target

    def __missing__(self, variable):
        source, target = self._ends
        number = next(self.numbers)
        self[variable] = SimpleNamespace(
            is_local_allgather_task=False, allgather_uuid=None,
            send_worker_task_ids={source: number}, recv_worker_task_ids={target: number},
        )  # fmt: skip
        return self[variable]


def _instructions(kind, schedule, stages, num_meshes):
    """What Alpa's emitter tells the one worker of each mesh, whose name is the mesh's number."""
    emitter = kind.__new__(kind)
    emitter.stages, emitter.schedule, emitter.uuid_counter = stages, schedule, 0
    emitter.mesh_group = [SimpleNamespace(workers=[mesh]) for mesh in range(num_meshes)]
    emitter.env = PipelineInstEmitterHelper(set(), set(), {}, schedule)
    emitter._resharding_tasks = [[_Tasks(*ends) for ends in itertools.product([source], range(num_meshes))]
                                 for source in range(num_meshes)]  # fmt: skip

    def alloc(variables, specs, mesh, batch, *_):
        uuids = emitter._get_next_uuids(len(variables))
        for variable, uuid in zip(variables, uuids, strict=True):
            emitter.env.set_var_mesh_uuid(variable, batch, mesh, uuid)
        return uuids

    emitter._compile_alloc = alloc
    sends = plan_sends(stages, [stage.mesh for stage in stages], ())
    emitter.stage_send_vars = [merge_sends(one, dict.fromkeys(stage.outvars, 0))
                               for one, stage in zip(sends, stages, strict=True)]  # fmt: skip
    lists = defaultdict(list)
    for tick in schedule.schedules:
        emitter._compile_exec_one_tick(tick, None, lists, range(len(stages)), None)
    return lists


def _simulate(lists, updates, num_meshes):
    """Carries out the instructions: a tile is sent at once and waited for, and updates wait for each other."""
    sent, at = set(), dict.fromkeys(range(num_meshes), 0)
    while any(at[mesh] < len(lists[mesh]) for mesh in at):
        went_on = False
        updating = [mesh for mesh in at if at[mesh] < len(lists[mesh]) and lists[mesh][at[mesh]].opcode.name == "RUN"
                    and lists[mesh][at[mesh]].task_uuid in updates]  # fmt: skip
        for mesh, number in at.items():
            if number == len(lists[mesh]):
                continue
            one = lists[mesh][number]
            if one.opcode.name == "SEND":
                sent.add(one.task_uuid)
            waits = one.opcode.name == "RECV" and one.task_uuid not in sent
            waits = waits or (mesh in updating and len(updating) < num_meshes)
            if not waits:
                at[mesh] += 1
                went_on = True
        assert went_on, f"all wait: {[lists[mesh][at[mesh]:][:1] for mesh in at]}"


@settings(max_examples=60, deadline=None)
@given(
    num_meshes=st.integers(2, 4),
    num_batches=st.integers(1, 5),
    skips=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    shared=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    which=st.sampled_from([
        (GpipeSchedule, PipelineInstEmitter), (PipeDreamFlush, PipelineInstEmitter),
        (OverlapFriendlyPipeDreamSchedule, OverlapFriendlyPipelineInstEmitter),
    ]),
)  # fmt: skip
def test_no_worker_waits_for_ever_in_drawn_pipelines(num_meshes, num_batches, skips, shared, which):
    meshes = range(num_meshes)
    new_var = jax.core.gensym()
    outs = [new_var(jax.core.ShapedArray((), jnp.float32)) for _ in range(4 * num_meshes)]
    activations, signals, gradients, results = (outs[kind * num_meshes :][:num_meshes] for kind in range(4))
    stages = [
        _stage(mesh, [activations[early] for early in range(mesh) if early == mesh - 1 or (early, mesh) in skips],
               [activations[mesh]]) for mesh in meshes
    ] + [
        _stage(mesh, [activations[one] for one in range(mesh + 1) if one == mesh or (one, mesh) in skips]
               + [signals[late] for late in range(mesh + 1, num_meshes) if late == mesh + 1 or (mesh, late) in skips],
               [signals[mesh], gradients[mesh]]) for mesh in reversed(meshes)
    ]  # fmt: skip
    updates = [
        _stage(mesh, [gradients[one] for one in meshes if one == mesh or (one, mesh) in shared], [results[mesh]])
        for mesh in meshes
    ]
    placement = {len(stages) + mesh: mesh for mesh in meshes}
    schedule = which[0](
        dependency=gen_dependency_with_stages(stages, updates), meshes=list(meshes), apply_grad_placement=placement,
        num_batch=num_batches,
    )  # fmt: skip
    lists = _instructions(which[1], schedule, stages + updates, num_meshes)
    runs = [one for each in lists.values() for one in each if one.opcode.name == "RUN"]
    assert len(runs) == num_meshes * (2 * num_batches + 1)
    _simulate(lists, set(placement), num_meshes)
