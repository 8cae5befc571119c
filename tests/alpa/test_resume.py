"""Training goes on by the contingency when a host is lost, and by nothing else."""

import dataclasses

import pytest

from alpa_dejavu.alpa.resume import HostsLostError, _following, train
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.replanning import Replanned
from alpa_dejavu.problem import Moves, Run
from alpa_dejavu.testing import example_cluster
from fake_session import Fake, FakeTime
from models import chain, planned, space

MADE = planned(chain(8, flop=1e12), example_cluster(num_hosts=3), space(hosts=3), Run(8), contingencies=True)
PLAN = MADE.plan
KEPT = Kept.of(dataclasses.replace(MADE, plan=dataclasses.replace(PLAN, batch=64)))
FAULT = ConnectionError("a worker has died")


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
    assert recovery.step_s == PLAN.contingencies["host-1"].step_s
    failed = session.calls.index(("step", 8))
    assert session.calls[failed + 1 :] == [
        "stop", ("start", 5), *(("step", n) for n in range(5, 10)), ("save", 10), ("step", 10), ("step", 11), "stop",
    ]  # fmt: skip


def test_a_recovery_takes_from_the_failing_steps_beginning_to_the_next_steps_end():
    passing = FakeTime()

    class Slow(Fake):
        def start(self, plan, checkpoint):
            passing.wait(20.0)
            super().start(plan, checkpoint)

        def step(self, number):
            passing.wait(3.0)
            return super().step(number)

        def save(self, number):
            passing.wait(7.0)
            super().save(number)

    session = Slow({(("step", 8), 1): ["host-1", FAULT]})
    (recovery,) = train(session, PLAN, 12, every=5, clock=passing.clock()).recoveries
    assert (recovery.noticed_s, recovery.started_s, recovery.seconds) == (3.0, 20.0, 26.0)


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
    passing = FakeTime()
    done = train(session, PLAN, 4, notice_s=30, clock=passing.clock())
    assert session.looks == 3
    assert 0 < passing.now_s < 30
    assert done.recoveries[0].hosts == ("host-1",)
    assert len(done.losses) == 4


def test_an_error_without_a_lost_host_stays_what_it_is():
    session = Fake({(("step", 2), 1): [FAULT]})
    passing = FakeTime()
    with pytest.raises(ConnectionError) as caught:
        train(session, PLAN, 4, notice_s=30, clock=passing.clock())
    assert caught.value is FAULT
    assert 30 <= passing.now_s < 31
    assert session.calls[-1] == "stop"


def test_errors_of_other_kinds_are_not_waited_for():
    session = Fake({(("step", 2), 1): [ZeroDivisionError()]})
    passing = FakeTime()
    with pytest.raises(ZeroDivisionError):
        train(session, PLAN, 4, notice_s=30, clock=passing.clock())
    assert (session.looks, passing.now_s) == (1, 0.0)
    session = Fake({(("step", 2), 1): ["host-1", FAULT], (("step", 2), 2): [KeyError("batch")]})
    with pytest.raises(KeyError):
        train(session, PLAN, 4, notice_s=30, clock=passing.clock())
    assert session.calls[-1] == "stop"


def test_a_second_loss_needs_what_was_kept():
    events = {(("step", 2), 1): ["host-1", FAULT], (("step", 3), 1): ["host-0", FAULT]}
    with pytest.raises(HostsLostError, match=r"host-1 and host-0 lost, and the plan has no contingency for that.*kept"):
        train(Fake(events), PLAN, 4)


def replans(asked):
    """A stand-in for planning again, which notes the lost hosts and the cluster that it is asked for."""

    def replan(plan, kept, *, without, cluster):
        asked.append((list(without), cluster))
        return Replanned(dataclasses.replace(PLAN, step_s=99.0), Moves((), 0.0, 0.0), 0.0)

    return replan


def test_a_second_loss_is_planned_for_from_what_was_kept(monkeypatch):
    asked = []
    monkeypatch.setattr(_following, "replan", replans(asked))
    events = {(("step", 2), 1): ["host-1", FAULT], (("step", 6), 1): ["host-0", FAULT]}
    done = train(Fake(events), PLAN, 12, every=5, kept=KEPT)
    assert asked == [(["host-1", "host-0"], None)]
    assert done.plan.step_s == 99.0
    assert done.losses == undisturbed()
    assert [recovery.hosts for recovery in done.recoveries] == [("host-1",), ("host-0",)]


def test_a_loss_while_recovering_counts_from_the_first(monkeypatch):
    monkeypatch.setattr(_following, "replan", replans([]))
    events = {(("step", 7), 1): ["host-1", FAULT], (("start", 5), 1): ["host-0", FAULT]}
    done = train(Fake(events), PLAN, 12, every=5, kept=KEPT)
    assert [recovery.hosts for recovery in done.recoveries] == [("host-1", "host-0")]
    assert done.recoveries[0].steps_lost == 2
    assert done.losses == undisturbed()


FULL = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.")


def test_where_memory_runs_out_it_goes_on_with_a_plan_for_less_of_it(monkeypatch):
    asked = []
    monkeypatch.setattr(_following, "replan", replans(asked))
    wrapped = RuntimeError("a task failed")
    wrapped.__cause__ = FULL
    events = {(("step", 7), 1): [FULL], (("step", 8), 1): [wrapped], (("step", 11), 1): ["host-1", FAULT]}
    done = train(Fake(events), PLAN, 12, every=5, kept=KEPT)
    assert done.losses == undisturbed()
    assert [(each.hosts, each.failed_step, each.resumed_step) for each in done.recoveries] == [
        ((), 7, 5), ((), 8, 5), (("host-1",), 11, 10),
    ]  # fmt: skip
    whole = KEPT.cluster.hosts[0].device.memory_bytes
    shares = [{round(host.device.memory_bytes / whole, 6) for host in cluster.hosts} for _, cluster in asked]
    # The stand-in has the same stages for any memory, so more and more is tried to be spared.
    tried = [{0.9}, {0.8}, {0.7}, {0.6}, {0.5}]
    assert shares == [*tried, *tried[1:], {0.8}]
    assert [without for without, _ in asked] == [[]] * 9 + [["host-1"]]


def test_memory_that_runs_out_for_good_is_said():
    said = r"memory ran out, and a plan with more room is another one; give train\(kept="
    with pytest.raises(MemoryError, match=said) as caught:
        train(Fake({(("step", 2), 1): [FULL]}), PLAN, 4)
    assert caught.value.__cause__ is not None
    with pytest.raises(MemoryError, match="memory ran out, once more often than most_losses, which is 0"):
        train(Fake({(("step", 2), 1): [FULL]}), PLAN, 4, most_losses=0)


def test_it_does_not_go_on_for_ever():
    events = {(("step", 2), 1): ["host-1", FAULT]}
    with pytest.raises(HostsLostError, match="once more often than most_losses, which is 0"):
        train(Fake(events), PLAN, 4, most_losses=0)
    alone = dataclasses.replace(PLAN, contingencies={})
    with pytest.raises(HostsLostError, match="host-1 lost, and the plan has no contingency") as caught:
        train(Fake({(("step", 2), 1): ["host-1", FAULT]}), alone, 4)
    assert caught.value.__cause__ is FAULT


def test_a_step_that_hangs_is_interrupted():
    passing = FakeTime()

    class Hanging(Fake):
        def step(self, number):
            passing.wait(4.0)
            while number == 2 and not self.interrupted:
                assert passing.now_s < 1000, "nobody interrupts it"
                passing.wait(0.5)
            if number == 2:
                self.interrupted = False
                self.meet(("hang", 2))
                if self.calls.count(("hang", 2)) == 1:
                    raise FAULT
            return super().step(number)

    options = {"notice_s": 20, "step_timeout_s": 6, "clock": passing.clock()}
    with pytest.raises(TimeoutError, match=r"step 2 took more than 6 s, though all hosts are there"):
        train(Hanging(), PLAN, 4, **options)
    # Two steps, a third until it is interrupted, and the wait for a host that would be known as lost.
    assert passing.now_s == pytest.approx(4 + 4 + 6 + 20, abs=0.5)
    done = train(Hanging({(("hang", 2), 1): ["host-1"]}), PLAN, 4, **options)
    assert len(done.recoveries) == 1
    assert passing.due == []


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"every": 0}, {"most_losses": -1}])
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ValueError, match="give at least 1, 1, 1 and 0"):
        train(Fake(), PLAN, **{"steps": 4, **wrong})


def test_without_a_checkpoint_it_begins_again():
    session = Fake({(("step", 3), 1): ["host-0", FAULT]})
    done = train(session, PLAN, 12, every=5)
    assert done.losses == undisturbed()
    assert done.recoveries[0].steps_lost == 3
    assert session.calls.count(("start", None)) == 2


def test_ctrl_c_stops():
    class Interrupted(Fake):
        def step(self, number):
            raise KeyboardInterrupt

    session = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        train(session, PLAN, 4)
    assert session.calls[-1] == "stop"
