"""One question through every door: the stage option on Alpa's own layers, `plan_model`, `replan` and `estimate`."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jax_models
import unlike
from alpa_dejavu import DejavuStageOption, plan_model
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.planning import estimate, given_stages
from alpa_dejavu.planning.changed.kept import Kept, read_kept, write_with_kept
from alpa_dejavu.planning.changed.kept_task import KeptSpace, kept_prices, kept_task
from alpa_dejavu.planning.changed.replanning import prepared, replan
from alpa_dejavu.planning.search._candidate import config_of_stage
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.problem import Cluster, Run
from alpa_dejavu.testing import example_cluster
from plans import priced_alike

MICRO_BATCH, MICRO_BATCHES = 8, 4


def tied(parameters, batch):
    """The first and the last layer share their weights."""
    x = batch
    for weight in (*parameters, parameters[0]):
        x = jnp.tanh(x @ weight)
    return (x**2).mean()


def tied_arguments():
    return [jnp.ones((32, 32))] * 5, jnp.ones((MICRO_BATCH * MICRO_BATCHES, 32))


def uneven(parameters, batch):
    """One layer is much wider than the others."""
    x = batch
    for first, second in parameters:
        x = jnp.tanh(jnp.tanh(x @ first) @ second)
    return (x**2).mean()


def uneven_arguments():
    widths = (16, 16, 256, 16, 64, 16)
    return [(jnp.ones((32, w)), jnp.ones((w, 32))) for w in widths], jnp.ones((MICRO_BATCH * MICRO_BATCHES, 32))


def of_batch(arguments):
    """The arguments with a whole batch: their arrays' first dimension is the batch's."""
    parameters, batch = arguments
    grown = jax.tree.map(lambda x: jnp.zeros((MICRO_BATCH * MICRO_BATCHES, *x.shape[1:]), x.dtype), batch)
    return parameters, grown


MODELS = {
    "mlp": (jax_models.mlp, lambda: of_batch(jax_models.mlp_arguments(depth=6, hidden=32))),
    "bert": (jax_models.bert, lambda: of_batch(jax_models.bert_arguments())),
    "vit": (jax_models.vit, lambda: of_batch(jax_models.vit_arguments())),
    "convolutions": (jax_models.convolutions, lambda: of_batch(jax_models.convolution_arguments(depth=6))),
    "tied": (tied, tied_arguments),
    "uneven": (uneven, uneven_arguments),
}


def alike():
    return example_cluster(num_hosts=2, devices_per_host=2, memory_bytes=2.0**32)


def unlike_hosts():
    """One fast host and a slow one."""
    return unlike.cluster([unlike.host("a"), unlike.host("b", 0.3e12)])


def shared():
    """All devices are parts of one CPU of two cores."""
    return dataclasses.replace(example_cluster(num_hosts=1, devices_per_host=4, memory_bytes=2.0**32), cores=2)


def odd():
    """Two hosts of three devices, on which parts of two don't fit in any mixture."""
    return example_cluster(num_hosts=2, devices_per_host=3, memory_bytes=2.0**32)


def one_device():
    return example_cluster(num_hosts=1, devices_per_host=1, memory_bytes=2.0**32)


CLUSTERS = {each.__name__: each for each in (alike, unlike_hosts, shared, odd, one_device)}


def virtual_mesh(cluster: Cluster):
    from alpa.device_mesh import VirtualPhysicalMesh

    info = [
        {"NodeManagerAddress": f"10.0.0.{n}", "NodeManagerHostname": host.name, "Resources": {}}
        for n, host in enumerate(cluster.hosts)
    ]
    return VirtualPhysicalMesh(list(range(len(info))), info, cluster.hosts[0].num_devices)


@pytest.fixture
def _stops_after_planning(monkeypatch):
    from planned_alpa import stopped_after_planning

    yield from stopped_after_planning(monkeypatch)


def by_stage_option(monkeypatch, model, cluster):
    """The plan that runs inside Alpa, and the layers that it is of."""
    import alpa

    from planned_alpa import PlannedError

    loss, arguments = MODELS[model]
    parameters, batch = arguments()

    def step(parameters, batch):
        gradients = alpa.grad(loss)(parameters, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, parameters, gradients)

    seen = []
    made = GivenModel.__init__

    def note(self, model, *args, **kwargs):
        seen.append(model)
        made(self, model, *args, **kwargs)

    monkeypatch.setattr(GivenModel, "__init__", note)
    option = DejavuStageOption(cluster=cluster, latency="analytic", communication="alpha-beta")
    method = alpa.PipeshardParallel(
        devices=virtual_mesh(cluster), num_micro_batches=MICRO_BATCHES,
        layer_option=alpa.AutoLayerOption(layer_num=4), stage_option=option,
        default_auto_sharding_option=alpa.AutoShardingOption(prefer_reduce_scatter=False),
    )  # fmt: skip
    with pytest.raises(PlannedError):
        alpa.parallelize(step, method=method)(parameters, batch)
    return option.last_plan, seen[0]


@pytest.mark.alpa
@pytest.mark.usefixtures("_stops_after_planning")
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_question_gets_the_same_answer_through_every_door(monkeypatch, model, cluster):
    hosts, run = CLUSTERS[cluster](), Run(MICRO_BATCHES)
    option_plan, layers = by_stage_option(monkeypatch, model, hosts)
    named = plan_model(
        layers, hosts, batch=MICRO_BATCH * MICRO_BATCHES, micro_batches=MICRO_BATCHES, remat=("none",), zero=(0,),
        latency="analytic", communication="alpha-beta",
    )  # fmt: skip
    again = replan(named.plan, Kept.of(named), cluster=hosts)
    estimated = estimate(layers, hosts, run, given_stages(named.plan), batch=named.plan.batch)
    for plan in (named.plan, again.plan, estimated.plan):
        priced_alike(plan, option_plan)
    assert again.moves.num_bytes == 0, "nothing has changed, so nothing moves"


SIZES = "transformer:hidden=1024,blocks=8,heads=16,vocabulary=32000,sequence=1024"


def given(stage):
    """What a stage is, but for its hosts: they are those that have most of its state."""
    return *stage.layers, config_of_stage(stage), stage.submesh, stage.memory_bytes


@pytest.mark.parametrize(("cluster", "batch", "how"), [
    ("2 x p3.8xlarge", 64, {"runs_on": "megatron"}),
    ("3 x p3.8xlarge", 96, {"runtime": "torchtitan", "schedule": "1f1b"}),
    ("2 x p3.8xlarge", 64, {"runs_on": "maxtext", "schedule": "1f1b"}),
])  # fmt: skip
def test_without_a_host_every_door_says_what_is_said_where_it_never_was(cluster, batch, how, tmp_path):
    """The number of micro-batches is another one without it, for which other meshes are offered."""
    hosts = named_cluster(cluster)
    ready = plan_model(SIZES, hosts, batch=batch, contingencies=True, **how)
    lost, path = hosts.hosts[-1].name, tmp_path / "plan.json"
    write_with_kept(dataclasses.replace(ready.plan, contingencies={}), Kept.of(ready), path)
    plan, kept = read_plan(path), read_kept(path)
    direct = plan_model(SIZES, without(hosts, [lost]), batch=batch, **how | {"schedule": plan.schedule}).plan
    again, explained = replan(plan, kept, without=[lost]).plan, prepared(plan, kept).contingencies[lost]
    for other in (again, explained, ready.plan.contingencies[lost]):
        assert other.step_s == pytest.approx(direct.step_s, rel=1e-9)
        assert other.num_micro_batches == direct.num_micro_batches
        assert list(map(given, other.stages)) == list(map(given, direct.stages))


def test_what_a_plan_was_made_from_is_kept_for_each_micro_batch_that_was_traced(tmp_path):
    """A micro-batch of one sample is divided in fewer ways than larger ones, of which meshes are kept, too."""
    hosts, path = named_cluster("2 x p3.8xlarge"), tmp_path / "plan.json"
    small, free = (
        plan_model(jax_models.trained, hosts, batch=16, layers=4, micro_batches=count, cache=False)
        for count in (16, None)
    )
    assert 1 not in Kept.of(free).by_samples
    write_with_kept(small.plan, dataclasses.replace(Kept.of(small), others=Kept.of(free).by_samples), path)
    plan, kept = read_plan(path), read_kept(path)
    assert {1, free.plan.batch // free.plan.num_micro_batches} <= set(kept.by_samples)
    space = kept_task(plan, kept, kept_prices(plan, kept)).space
    alone = KeptSpace(dataclasses.replace(kept, others={}))
    assert not any(space.missing(hosts, samples) for samples in kept.by_samples)
    assert all(alone.missing(hosts, samples) for samples in kept.by_samples if samples > 1)


def test_an_estimate_of_a_plan_that_leaves_hosts_out_is_the_plan():
    """Four hosts whose links are so slow that one alone is faster."""
    slow = example_cluster(num_hosts=4, devices_per_host=2, memory_bytes=2.0**34)
    links = tuple(
        tuple(link if a == b else dataclasses.replace(link, bytes_per_s=1e5) for b, link in enumerate(row))
        for a, row in enumerate(slow.links)
    )
    slow = dataclasses.replace(slow, links=links)
    planned = plan_model(jax_models.trained, slow, batch=32, layers=4)
    used = {host for stage in planned.plan.stages for host in stage.hosts}
    assert len(used) < 4
    estimated = estimate(planned.model, slow, planned.run, given_stages(planned.plan), batch=32)
    priced_alike(estimated.plan, planned.plan)
    (note,) = [note for note in planned.plan.notes if "left unused" in note]
    assert all(host.name in note for host in slow.hosts if host.name not in used)
