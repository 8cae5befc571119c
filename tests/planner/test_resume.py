"""Training goes on by the contingency when a host is lost, and by nothing else."""

import dataclasses
import time

import pytest
from models import chain, planned, space

from alpa_dejavu.problem import Run
from alpa_dejavu.resume import HostsLostError, Session, train
from alpa_dejavu.testing import example_cluster

PLAN = planned(chain(8, flop=1e12), example_cluster(num_hosts=3), space(hosts=3), Run(8)).plan
FAULT = ConnectionError("a worker has died")


class Fake(Session):
    """Losses follow from a state that each step changes; at some calls hosts are lost, or other things go wrong."""

    def __init__(self, events=()):
        self.events, self.calls, self.saved, self.gone = dict(events), [], {}, []
        self.running, self.interrupted = False, False
        self.looks, self.late = 0, None

    def meet(self, call):
        self.calls.append(call)
        for event in self.events.pop((call, self.calls.count(call)), ()):
            if isinstance(event, Exception):
                raise event
            self.gone.append(event)

    def start(self, plan, checkpoint):
        self.plan, self.running = plan, True
        self.state = self.saved[checkpoint] if checkpoint else 1.0
        self.meet(("start", checkpoint))

    def step(self, number):
        assert self.running
        self.meet(("step", number))
        self.state = self.state * 0.9 + number
        return self.state

    def save(self, number):
        self.meet(("save", number))
        self.saved[number] = self.state

    def stop(self):
        self.running = False
        self.calls.append("stop")

    def lost(self):
        self.looks += 1
        return list(self.gone) if self.late is None or self.looks < self.late else ["host-1"]

    def suspects(self, error):
        return isinstance(error, ConnectionError)

    def interrupt(self):
        self.interrupted = True


def undisturbed(steps=12):
    return train(Fake(), PLAN, steps, every=5).losses


def test_nothing_happens_to_most_trainings():
    session = Fake()
    done = train(session, PLAN, 12, every=5)
    assert (done.recoveries, done.plan) == ((), PLAN)
    assert session.calls == [
        ("start", None), *(("step", n) for n in range(5)), ("save", 5), *(("step", n) for n in range(5, 10)),
        ("save", 10), ("step", 10), ("step", 11), "stop",
    ]  # fmt: skip


def test_a_lost_host_costs_the_steps_since_the_checkpoint():
    session = Fake({(("step", 8), 1): ["host-1", FAULT]})
    done = train(session, PLAN, 12, every=5)
    assert done.losses == undisturbed()
    assert done.plan.stages == PLAN.contingencies["host-1"].stages
    assert session.plan is done.plan
    (recovery,) = done.recoveries
    assert (recovery.hosts, recovery.failed_step, recovery.resumed_step, recovery.steps_lost) == (("host-1",), 8, 5, 3)
    assert 0 <= recovery.noticed_s <= recovery.noticed_s + recovery.started_s <= recovery.seconds
    assert recovery.step_s == PLAN.contingencies["host-1"].step_s
    failed = session.calls.index(("step", 8))
    assert session.calls[failed + 1 :] == [
        "stop", ("start", 5), *(("step", n) for n in range(5, 10)), ("save", 10), ("step", 10), ("step", 11), "stop",
    ]  # fmt: skip


def test_without_a_checkpoint_it_begins_again():
    session = Fake({(("step", 3), 1): ["host-0", FAULT]})
    done = train(session, PLAN, 12, every=5)
    assert done.losses == undisturbed()
    assert done.recoveries[0].steps_lost == 3
    assert session.calls.count(("start", None)) == 2


@pytest.mark.parametrize("where", [("save", 5), ("start", None), ("step", 5)])
def test_it_may_happen_anywhere(where):
    done = train(Fake({(where, 1): ["host-2", FAULT]}), PLAN, 12, every=5)
    assert done.losses == undisturbed()
    assert [recovery.hosts for recovery in done.recoveries] == [("host-2",)]
    # A checkpoint that was cut off doesn't count.
    assert done.recoveries[0].resumed_step == (5 if where == ("step", 5) else 0)


def test_what_ray_notices_late_is_waited_for():
    session = Fake({(("step", 2), 1): [FAULT]})
    session.late = 3
    done = train(session, PLAN, 4, notice_s=30)
    assert session.looks >= 3
    assert done.recoveries[0].hosts == ("host-1",)
    assert len(done.losses) == 4


def test_an_error_without_a_lost_host_stays_what_it_is():
    session = Fake({(("step", 2), 1): [FAULT]})
    with pytest.raises(ConnectionError) as caught:
        train(session, PLAN, 4, notice_s=0.3)
    assert caught.value is FAULT
    assert session.calls[-1] == "stop"


def test_errors_of_other_kinds_are_not_waited_for():
    session = Fake({(("step", 2), 1): [ZeroDivisionError()]})
    with pytest.raises(ZeroDivisionError):
        train(session, PLAN, 4, notice_s=30)
    assert session.looks == 1
    session = Fake({(("step", 2), 1): ["host-1", FAULT], (("step", 2), 2): [KeyError("batch")]})
    with pytest.raises(KeyError):
        train(session, PLAN, 4, notice_s=0.3)
    assert session.calls[-1] == "stop"


def test_ctrl_c_stops():
    class Interrupted(Fake):
        def step(self, number):
            raise KeyboardInterrupt

    session = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        train(session, PLAN, 4)
    assert session.calls[-1] == "stop"


def test_a_second_loss_needs_what_was_kept():
    events = {(("step", 2), 1): ["host-1", FAULT], (("step", 3), 1): ["host-0", FAULT]}
    with pytest.raises(HostsLostError, match=r"host-1 and host-0 lost, and the plan has no contingency for that.*kept"):
        train(Fake(events), PLAN, 4)


def test_a_second_loss_is_planned_for_from_what_was_kept(monkeypatch):
    from alpa_dejavu.resume import _train

    asked = []

    def replan(plan, kept, without):
        asked.append((plan, kept, list(without)))
        return dataclasses.make_dataclass("Made", ["plan"])(dataclasses.replace(PLAN, step_s=99.0))

    monkeypatch.setattr(_train, "replan", replan)
    events = {(("step", 2), 1): ["host-1", FAULT], (("step", 6), 1): ["host-0", FAULT]}
    done = train(Fake(events), PLAN, 12, every=5, kept="kept")
    assert asked == [(PLAN, "kept", ["host-1", "host-0"])]
    assert done.plan.step_s == 99.0
    assert done.losses == undisturbed()
    assert [recovery.hosts for recovery in done.recoveries] == [("host-1",), ("host-0",)]


def test_a_loss_while_recovering_counts_from_the_first(monkeypatch):
    from alpa_dejavu.resume import _train

    monkeypatch.setattr(
        _train, "replan", lambda plan, kept, without: dataclasses.make_dataclass("Made", ["plan"])(PLAN)
    )
    events = {(("step", 7), 1): ["host-1", FAULT], (("start", 5), 1): ["host-0", FAULT]}
    done = train(Fake(events), PLAN, 12, every=5, kept="kept")
    assert [recovery.hosts for recovery in done.recoveries] == [("host-1", "host-0")]
    assert done.recoveries[0].steps_lost == 2
    assert done.losses == undisturbed()


def test_it_does_not_go_on_for_ever():
    events = {(("step", 2), 1): ["host-1", FAULT]}
    with pytest.raises(HostsLostError, match="once more often than most_losses, which is 0"):
        train(Fake(events), PLAN, 4, most_losses=0)
    alone = dataclasses.replace(PLAN, contingencies={})
    with pytest.raises(HostsLostError, match="host-1 lost, and the plan has no contingency") as caught:
        train(Fake({(("step", 2), 1): ["host-1", FAULT]}), alone, 4)
    assert caught.value.__cause__ is FAULT


def test_a_step_that_hangs_is_interrupted():
    class Hanging(Fake):
        def step(self, number):
            deadline = time.monotonic() + 10
            while number == 2 and not self.interrupted and time.monotonic() < deadline:
                time.sleep(0.01)
            if number == 2:
                self.interrupted = False
                self.meet(("hang", 2))
                if ("hang", 2) in self.calls and self.calls.count(("hang", 2)) == 1:
                    raise FAULT
            return super().step(number)

    with pytest.raises(TimeoutError, match=r"step 2 took more than 0\.2 s, though all hosts are there"):
        train(Hanging(), PLAN, 4, notice_s=0.2, step_timeout_s=0.2)
    done = train(Hanging({(("hang", 2), 1): ["host-1"]}), PLAN, 4, notice_s=0.2, step_timeout_s=0.2)
    assert len(done.recoveries) == 1


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"every": 0}, {"most_losses": -1}])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="give at least 1, 1 and 0"):
        train(Fake(), PLAN, **{"steps": 4, **wrong})
