"""`plan --tolerate`: as many replicas as a rule needs, and what they cost."""
import dataclasses

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s
from tanh_layers import trained


def test_gathering_takes_in_half_as_many_times_the_bytes_as_there_are_replicas():
    plan = plan_model(trained, named_cluster("p3.16xlarge"), batch=32, micro_batches=1, layers=4, replicas=8).plan
    (stage,) = plan.stages
    assert stage.synchronisation_s > 0
    assert gathering_step_s(plan) == pytest.approx(plan.step_s + 3 * stage.synchronisation_s)
    two = dataclasses.replace(plan, stages=(dataclasses.replace(stage, logical_mesh=(2, 4)),))
    assert gathering_step_s(two) == plan.step_s
