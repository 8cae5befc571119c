"""Training goes on after a device is lost, from copies, and with hosts that join where that repays."""

import dataclasses
import re

import pytest

from alpa_dejavu.alpa.resume import HostsLostError, train
from alpa_dejavu.clusters.changed_cluster import with_hosts
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster
from fake_session import Fake, FakeTime
from models import chain, planned, space

MADE = planned(chain(8, flop=1e12), example_cluster(num_hosts=3), space(hosts=3), Run(8), contingencies=True)
PLAN = dataclasses.replace(MADE.plan, batch=64)
KEPT = Kept.of(dataclasses.replace(MADE, plan=PLAN))
FAULT = ConnectionError("a worker has died")


def undisturbed(steps=12):
    return train(Fake(), PLAN, steps, every=5).losses


def test_a_lost_device_is_planned_without_and_not_waited_for():
    session, passing = Fake({(("step", 8), 1): [FAULT]}), FakeTime()
    session.devices = ["host-1/2"]
    done = train(session, PLAN, 12, every=5, kept=KEPT, clock=passing.clock())
    assert (done.losses, passing.now_s) == (undisturbed(), 0.0)
    (recovery,) = done.recoveries
    assert (recovery.hosts, recovery.cause, recovery.resumed_step) == (("host-1/2",), "host-1/2 lost", 5)
    assert done.plan.devices_of_hosts.get("host-1", 0) <= 3
    session = Fake({(("step", 8), 1): [FAULT]})
    session.devices = ["host-1/2"]
    with pytest.raises(HostsLostError, match=r"host-1/2 lost, and the plan has no contingency.*give train\(kept="):
        train(session, PLAN, 12, every=5)


def test_a_failure_without_a_lost_device_is_tried_once_more():
    session = Fake({(("step", 8), 1): [FAULT], (("step", 9), 1): [FAULT]})
    session.devices = []
    done = train(session, PLAN, 12, every=5)
    assert (done.losses, done.plan) == (undisturbed(), PLAN)
    failed = "a worker failed"
    assert [(each.failed_step, each.cause) for each in done.recoveries] == [(8, failed), (9, failed)]
    for events in ({(("step", 8), 1): [FAULT], (("step", 8), 2): [FAULT]}, {(("step", 0), 1): [FAULT]}):
        session = Fake(events)
        session.devices = []
        with pytest.raises(ConnectionError) as caught:
            train(session, PLAN, 12, every=5)
        assert caught.value is FAULT


def test_it_goes_on_from_the_newer_of_checkpoint_and_copy():
    def resumed(copied_at="newest", **options):
        session = Fake({(("step", 9), 1): ["host-1", FAULT]})
        if copied_at is None:
            session.copied = lambda: None
        done = train(session, PLAN, 12, **options)
        assert done.losses == undisturbed()
        return done.recoveries[0].resumed_step

    assert resumed(every=None, copy_every=4) == 8
    assert resumed(every=5, copy_every=4) == 8
    assert resumed(every=3, copy_every=4) == 9
    # A copy that is torn or gone isn't taken.
    assert resumed(copied_at=None, every=5, copy_every=4) == 5
    with pytest.raises(HostsLostError, match="host-1 lost, and the copy of step 8 is lost with them or torn; write"):
        resumed(copied_at=None, every=None, copy_every=4)


def joining(step_s, steps=12, cause="host-3"):
    """A training in which a host joins before step 2; a start takes 10 s."""
    passing = FakeTime()

    class Slow(Fake):
        def start(self, plan, checkpoint):
            passing.wait(10.0)
            super().start(plan, checkpoint)

        def step(self, number):
            passing.wait(step_s * self.plan.step_s / PLAN.step_s)
            if number == 2:
                self.here = {cause: 4}
            return super().step(number)

    session = Slow()
    return train(session, PLAN, steps, every=5, kept=KEPT, clock=passing.clock()), session


def test_a_host_that_joins_is_taken_in_where_the_steps_left_repay_it():
    taken, session = joining(step_s=60.0)
    assert "host-3" in taken.plan.devices_of_hosts
    (change,) = taken.changes
    assert (change.joined, change.step, change.seconds) == (("host-3",), 5, 10.0)
    # The seven steps that are left, each shorter as predicted.
    assert change.saved_s == pytest.approx(7 * 60 * (1 - taken.plan.step_s / PLAN.step_s))
    assert 10 <= change.cost_s < change.saved_s
    assert taken.losses == undisturbed()
    assert session.calls.count(("save", 5)) == 1
    left, session = joining(step_s=1.0)
    assert (left.plan, left.changes) == (PLAN, ())
    odd, _ = joining(step_s=60.0, cause="host-1")
    assert odd.changes == ()


def test_what_is_to_be_left_out_is_after_the_next_checkpoint():
    session = Fake()
    done = train(session, PLAN, 12, every=5, kept=KEPT, leave_out=lambda: ["host-2"])
    assert [(each.left_out, each.step) for each in done.changes] == [(("host-2",), 5)]
    assert "host-2" not in done.plan.devices_of_hosts
    assert (done.losses, done.recoveries) == (undisturbed(), ())


def test_what_cannot_be_left_out_is_said_and_stays(caplog):
    asked = []

    def everything():
        asked.append(1)
        return ["host-0", "host-1", "host-2"] if len(asked) == 1 else ["host-9"]

    done = train(Fake(), PLAN, 12, every=3, kept=KEPT, leave_out=everything)
    assert (done.losses, done.plan, done.changes) == (undisturbed(), PLAN, ())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert re.search("host-0 and host-1 and host-2 can't be left out.*nothing is left without them", said[0])
    assert re.search("host-9 can't be left out.*no host 'host-9'", said[1])


def test_where_there_is_no_plan_with_so_many_replicas_there_are_fewer(caplog):
    kept = KEPT.with_replicas(8)
    done = train(Fake({(("step", 8), 1): ["host-1", "host-2", FAULT]}), PLAN, 12, every=5, kept=kept)
    assert done.losses == undisturbed()
    assert done.plan.num_devices <= 4
    assert "since there is no plan for 8" in caplog.text


def test_a_cluster_with_a_host_more_is_like_it_would_be_with_that_from_the_beginning():
    two = example_cluster(num_hosts=2)
    three = with_hosts(two, {"host-2": 4})
    whole = example_cluster(num_hosts=3)
    assert (three.hosts, three.links) == (whole.hosts, whole.links)
    wrong = ({"host-1": 4}, "has a host 'host-1' already"), ({"new": 3}, "has 3 devices, but must be like one")
    for joined, said in wrong:
        with pytest.raises(ValueError, match=said):
            with_hosts(two, joined)
    with pytest.raises(ValueError, match="no known machine type"):
        with_hosts(example_cluster(num_hosts=1), {"new": 4})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": None}, "one of them must be a number of steps"),
        ({"copy_every": 0}, "copy_every 0.*give at least 1"),
        ({"every": 2, "saves": False}, "every is 2, but must be None for a session without a folder"),
        ({"copy_every": 2, "copies": False}, "copy_every is 2, but must be None for a Simple, which makes no copies"),
    ],
)
def test_what_a_session_cannot_do_is_refused(wrong, said):
    class Simple(Fake):
        saves = wrong.pop("saves", True)
        copies = wrong.pop("copies", True)

    session = Simple()
    with pytest.raises(ValueError, match=said):
        train(session, PLAN, 4, **wrong)
    assert session.calls == []
