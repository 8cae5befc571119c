"""The step that can be differentiated, event for event as it is simulated."""

import functools

import jax
import numpy as np
import pytest

from alpa_dejavu.simulation.step import StageTimes, simulate
from alpa_dejavu.slicing.relaxation import RelaxedPlan
from alpa_dejavu.slicing.relaxation.pipeline import many, pipeline_s

PLACES, PLANS, MICRO_BATCHES = 8, 64, 8
step_s = functools.partial(pipeline_s, most_micro_batches=MICRO_BATCHES)


def _plans(seed):
    """Of one to eight stages, with transfers that take time and some that take none."""
    rng = np.random.default_rng(seed)
    count, size = rng.integers(1, PLACES + 1, PLANS), rng.integers(1, MICRO_BATCHES + 1, PLANS)
    there = np.arange(PLACES) < count[:, None]
    forward, backward, once, crossing, *rest = (rng.random((6, PLANS, PLACES)) * there).astype(np.float32)
    crossing *= rng.random(crossing.shape) < rng.choice([0.0, 0.6, 1.0], (PLANS, 1))
    crossing[:, 0] = 0.0
    return RelaxedPlan(forward, backward, once, crossing, *rest, count.astype(np.int32), size.astype(np.int32))


def test_it_is_the_simulated_step():
    plans = _plans(0)
    found = np.asarray(many(step_s, plans))
    for n, step in enumerate(found):
        count = int(plans.num_stages[n])
        half = [*(plans.crossing_s[n, :count] / 2).tolist(), 0.0]
        stages = [
            StageTimes(
                float(plans.forward_s[n, k]), float(plans.backward_s[n, k]), float(plans.once_s[n, k]),
                forward_send_s=half[k + 1], backward_send_s=half[k],
            )
            for k in range(count)
        ]  # fmt: skip
        assert step == pytest.approx(simulate(stages, int(plans.num_micro_batches[n])).step_s, rel=1e-5)


def test_its_gradient_says_what_is_waited_for():
    """One step more or less in a stage's forward moves the whole by as many as are on the longest way."""
    plan = jax.tree_util.tree_map(lambda part: part[5], _plans(1))
    gradients = jax.jit(jax.grad(lambda forward: step_s(plan._replace(forward_s=forward))))
    gradient = np.asarray(gradients(plan.forward_s))
    assert (gradient[int(plan.num_stages) :] == 0).all()
    assert gradient.max() >= 1
    slower = plan._replace(forward_s=plan.forward_s + 1e-3 * (np.arange(PLACES) == gradient.argmax()))
    steps = np.asarray(many(step_s, jax.tree_util.tree_map(lambda *parts: np.stack(parts * 32), slower, plan)))
    assert steps[0] - steps[1] == pytest.approx(1e-3 * gradient.max(), rel=0.05)
