"""Partial reduce: whom its groups join, what it sends, and whom it doesn't wait for."""

import math

import numpy as np
import optax
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import LocalSteps, PartialReduce
from alpa_dejavu.testing import example_cluster
from seen_training import Messages, counting_job, simulated


def groups_of(job, way, until, faults=()):
    """Returns the members of each group, in the order in which the coordinator formed them, and the history."""
    seen = Messages()
    history = simulate(job, example_cluster(2, 4), way, until=until, faults=[seen, *faults], looks=0)
    formed = dict(message.payload for message in seen.tagged("group"))
    return [sorted(versions) for versions in formed.values()], history


def parts(groups):
    """Returns into how many parts groups leave eight workers."""
    ends = np.array([(group[0], other) for group in groups for other in group[1:]])
    return connected_components(coo_matrix((np.ones(len(ends)), ends.T), (8, 8)))[0]


@pytest.mark.parametrize(("ready", "window"), [(2, 13), (2, 27), (3, 7), (3, None), (8, 1)])
@pytest.mark.parametrize("slow", [1.0, 30.0])
def test_every_window_connects_all_workers(ready, window, slow):
    job = Job(None, [slow, *[1.0] * 7], spread=0.5, num_bytes=1e3)
    groups, _ = groups_of(job, PartialReduce(ready, window), Until(seconds=60 + 18 * slow))
    span = window or 4 * math.ceil(7 / (ready - 1)) - 1
    assert len(groups) >= 10 + span
    for start in range(len(groups) - span + 1):
        assert parts(groups[start : start + span]) == 1, groups[start : start + span]


def test_weights_are_those_of_how_far_each_is_behind():
    # Replayed: who is in a group has made an update since its last one, and takes the weighted mean.
    seen = Messages()
    job = counting_job((1.0, 3.0, 1.0, 1.0))
    simulated(job, (1, 4), PartialReduce(2, decay=0.5), steps=9, faults=[seen], looks=0)
    params, versions, behind = np.zeros((4, 4)), np.zeros(4, int), set()
    for _, told in sorted(dict(message.payload for message in seen.tagged("group")).items()):
        group = sorted(told)
        params[group, group] += 1
        versions[group] += 1
        late = versions[group].max() - versions[group]
        params[group] = (0.5**late / (0.5**late).sum()) @ params[group]
        versions[group] = versions[group].max()
        behind |= set(late)
    assert behind > {0, 1}
    np.testing.assert_allclose([worker.params for worker in seen.world.workers.values()], params, atol=1e-5)


def test_a_group_of_all_is_the_mean_of_all():
    job = Job(problem("digits-mlp"), 0.1, spread=0.3, optimizer=optax.sgd(0.1, momentum=0.9))
    one, other = (simulated(job, (1, 4), way, steps=6, looks=0) for way in (PartialReduce(4), LocalSteps(1)))
    assert one.params.tobytes() == other.params.tobytes()


def test_settings_that_can_t_be_are_said():
    with pytest.raises(ValueError, match="ready is 1, but must be at least 2"):
        PartialReduce(1)
    with pytest.raises(ValueError, match="decay is 0, but must be above 0"):
        PartialReduce(decay=0)
    for way, said in ((PartialReduce(5), "ready is 5, but must be at most the 4 workers"),
                      (PartialReduce(2, 4), "window is 4, but must be at least 5 for 4 workers")):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            simulated(Job(None, 0.1, num_bytes=1), (1, 4), way, steps=1)
