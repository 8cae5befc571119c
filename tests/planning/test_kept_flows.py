"""What waits for what in sharded layers is kept beside a plan, so that what hides behind computing is known again."""

import functools

import numpy as np
import pytest

from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs import CostModels, cost_table
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.runtime import ALPA, with_overlap
from alpa_dejavu.layers import trace
from alpa_dejavu.planning.kept import Kept, kept_path, read_kept, write_with_kept
from alpa_dejavu.planning.kept.packed import packed_json, read_packed
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
    kept = Kept(traced(), CLUSTER, Run(4), 16, ("none", "layer"), (0, 3))
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
