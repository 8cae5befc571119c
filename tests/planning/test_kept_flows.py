"""What waits for what in sharded layers is kept beside a plan, so that what hides behind computing is known again."""

import functools
import re

import numpy as np
import pytest

from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs import CostModels, cost_table
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.runtime import ALPA, with_overlap
from alpa_dejavu.layers import trace
from alpa_dejavu.planning.changed.kept import Kept, kept_path, read_kept, write_with_kept
from alpa_dejavu.planning.search.models._model import packed
from alpa_dejavu.planning.search.models.model_cache import packed_json, read_packed
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.problem import Run
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.testing import example_cluster
from parallel_layers import kraken
from plans import example_plan

CLUSTER = example_cluster(1)
KINDS = ("collective_forward_s", "collective_backward_s", "synchronisation_s")
SLOW = Overlap("streams", 1.2, 1.3)
SPACE = search_space(CLUSTER, 4, remat=("none", "layer"), zero=(0, 3))


@functools.cache
def traced():
    return model_of_step(trace(kraken(), batch=4), 3)


def table(model, overlap=SLOW):
    return cost_table(model, CLUSTER, SPACE, Run(4), CostModels.named(runtime=with_overlap(ALPA, overlap)))


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "plan.json"
    kept = Kept(traced(), CLUSTER, Run(4), 16, SpaceRules(remat=("none", "layer"), zero=(0, 3)))
    write_with_kept(example_plan(cluster=CLUSTER.name, batch=16), kept, written)
    return written


def assert_equal(one, other):
    for kind in KINDS:
        np.testing.assert_array_equal(getattr(one, kind), getattr(other, kind))


def test_a_kept_model_hides_what_the_traced_one_does(path):
    whole, streams = table(traced(), "none"), table(traced())
    assert (whole.collective_forward_s - streams.collective_forward_s).max() > 0
    assert_equal(table(read_kept(path).model), streams)


def test_in_an_old_file_all_collectives_of_activations_are_exposed(path):
    old = read_packed(kept_path(path))
    for name in ("flows", "flows_of_layers"):
        del old["sharding"][name]
    kept_path(path).write_bytes(packed_json(old))
    found = table(read_kept(path).model)
    assert_equal(table(read_kept(path).model, "none"), table(traced(), "none"))
    along = [
        (s, c) for s, row in enumerate(SPACE.configs) for c, config in enumerate(row)
        if config is not None and config.data_parallel == 1 and config.tensor_parallel > 1
    ]  # fmt: skip
    assert along
    alone, streams = table(traced(), "none"), table(traced())
    for s, c in along:
        exposed = found.collective_forward_s[..., s, c]
        np.testing.assert_array_equal(exposed, alone.collective_forward_s[..., s, c])
        assert (exposed > streams.collective_forward_s[..., s, c]).any()


def test_flows_of_operators_that_there_are_not_are_refused(path):
    broken = read_packed(kept_path(path))
    broken["sharding"]["flows_of_layers"][0] = [10**6, 10**6]
    kept_path(path).write_bytes(packed_json(broken))
    with pytest.raises(ValueError, match="isn't what is kept for planning again"):
        read_kept(path)


def changed(path, change):
    data = read_packed(kept_path(path))
    change(data)
    kept_path(path).write_bytes(packed_json(data))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["sharding"]["layers"][0].update(memory_parts=[[[0, 0], [0, 0]]]), "memory_parts has the shape"),
        (lambda d: d["sharding"]["layers"][0]["memory_parts"][0][0].__setitem__(0, -1.0), "memory_parts has -1.0"),
        (lambda d: d["sharding"]["layers"][0].update(temporary_moments=[]), "temporary_moments is empty"),
        (lambda d: d["sharding"]["layers"][0].update(mesh_shape=[2]), "mesh_shape is"),
        (lambda d: d["sharding"]["layers"][0].update(mesh_shape=[1, 1024]), "sharded on another one"),
        (lambda d: d["sharding"]["layers"][0].update(forward_cuts=packed(np.ones((1, 2)), np.int8)), "cuts of"),
        (lambda d: d["sharding"]["flows"][0].update(steps=[10**6], back=[0]), "is of a node outside"),
        (lambda d: d["sharding"]["flows"][0].update(collectives=[["all", 1.0, 0, "forward"]]), "kind is 'all'"),
        (lambda d: d["sharding"]["flows"][0].update(collectives=[["all_reduce", -1.0, 0, "forward"]]), "num_bytes is"),
        (lambda d: d["sharding"]["flows"][0].update(collectives=[["all_reduce", 1.0, 7, "forward"]]), "along axis 7"),
        (lambda d: d["sharding"].update(batch_ratio=-1.0), "batch_ratio is -1.0"),
        (lambda d: d["model"]["operators"][0].update(flop=[-1.0]), "KeyError"),
        (lambda d: d["model"]["distinct"][0].__setitem__(5, -1.0), "flop is -1.0"),
        (lambda d: d["model"]["layers"][0].update(exchanged_bytes=[-1.0]), "exchanged_bytes has -1.0"),
        (lambda d: d["model"]["layers"][0].update(temporary_bytes=[-1.0, 0.0]), "forward_temporary_bytes is -1.0"),
        (lambda d: d["model"]["tensors"][0].__setitem__(2, -9), "is made at a position below -1"),
        (lambda d: d["model"]["tensors"][0].__setitem__(3, [0.5]), "cannot be interpreted as an integer"),
    ],
)
def test_what_is_of_another_shape_or_below_zero_is_refused_where_it_is_read(path, change, said):
    changed(path, change)
    with pytest.raises(ValueError, match=f"isn't what is kept for planning again: .*{re.escape(said)}.*plan once more"):
        read_kept(path)
