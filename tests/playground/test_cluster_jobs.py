"""Several jobs on one cluster: hand calculations, brute force, and what must hold of any schedule."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.cli.main import main
from alpa_dejavu.planning import plan_model
from alpa_dejavu.playground.jobs import (
    POLICIES,
    ClusterJob,
    HostChange,
    Policy,
    Pool,
    StepCurve,
    Workload,
    planned_curve,
    policy,
    schedule,
)
from alpa_dejavu.playground.jobs.trace import drawn_hosts, drawn_jobs, read_host_changes, read_jobs
from alpa_dejavu.testing import example_cluster
from models import chain

PLAIN = StepCurve({1: 1.0, 2: 0.5})
TINY = st.tuples(st.floats(0, 10), st.floats(1, 20), st.floats(0.5, 0.95))
SLOWED = ("fifo", "equal-shares", "sensitivity")


class Recorded(Policy):
    """Another policy, of which each decision is kept with the state that it was for."""

    def __init__(self, inner):
        self.inner, self.kept = inner, []

    def allot(self, workload, state):
        decision = self.inner.allot(workload, state)
        self.kept.append((state, decision))
        return decision


def job(arrival_s, steps, devices=2, curve=PLAIN, **more):
    return ClusterJob(f"at {arrival_s}", arrival_s, steps, devices, curve, **more)


def completions(workload, name):
    return schedule(workload, policy(name)).completion_s.tolist()


def test_a_step_is_the_longest_of_its_three_parts():
    curve = StepCurve({1: 2.0, 2: 1.0, 4: 1.5}, core_s=6.0, data_bytes=100.0, uncached_s=4.0)
    assert curve.sizes == (1, 2)  # four devices are no faster than two
    assert curve.seconds(2, 12, 100) == 1.0  # computing
    assert curve.seconds(2, 3, 100) == 2.0  # preparing: six seconds of a core on three
    assert curve.seconds(2, 12, 25) == 3.0  # reading three quarters of the samples
    assert curve.seconds(2, 0, 100) == math.inf
    assert curve.needs(2.0) == (3.0, 50.0)


def none_or(least, most):
    """Zero, or a number that is large enough to be a part of a second or of a byte."""
    return st.just(0.0) | st.floats(least, most)


@settings(max_examples=50)
@given(st.floats(0.1, 10), none_or(1e-6, 20), none_or(1e-6, 10), none_or(1, 1e9))
def test_what_a_step_needs_is_enough_and_not_too_much(step_s, core_s, uncached_s, data_bytes):
    curve = StepCurve({1: 0.05}, core_s, data_bytes, uncached_s)
    cores, memory_bytes = curve.needs(step_s)
    assert curve.seconds(1, cores, memory_bytes) <= step_s * (1 + 1e-9)
    if cores > 0:
        assert curve.seconds(1, 0.99 * cores, memory_bytes) > step_s
    if memory_bytes > 1 and uncached_s > 1.1 * step_s:
        assert curve.seconds(1, cores, 0.9 * memory_bytes) > step_s


def test_fifo_by_hand():
    # The second asks for both devices and waits; the third would fit beside nobody.
    workload = Workload((job(0, 10), job(1, 4), job(2, 1, devices=1)), Pool(1, 2, 8, 1e9))
    assert completions(workload, "fifo") == [5.0, 6.0, 6.0]
    found = schedule(workload, policy("fifo"))
    assert found.first_s.tolist() == [0.0, 4.0, 5.0]
    assert found.starved_s.tolist() == [0.0, 4.0, 5.0]
    assert (found.mean_s, found.high_s, found.end_s) == (17 / 3, 6.0, 8.0)


def test_sensitivity_by_hand():
    # An equal share is two cores: too few for the second job by half. The first one needs none.
    hungry = StepCurve({1: 1.0}, core_s=4.0)
    workload = Workload((job(0, 10, 1, StepCurve({1: 1.0})), job(0, 10, 1, hungry)), Pool(1, 2, 4, 1e9))
    assert completions(workload, "equal-shares") == [10.0, 20.0]
    assert completions(workload, "sensitivity") == [10.0, 10.0]


def test_a_lost_host_costs_steps_and_a_restart():
    # Eight steps of one device by second 8, back to the sixth; on the other host from 8 on, with two seconds lost.
    lost = job(0, 10, 1, StepCurve({1: 1.0}), checkpoint_steps=3)
    changes = (HostChange(8, 0, False), HostChange(50, 0, True))
    workload = Workload((lost,), Pool(2, 1, 4, 1e9), changes, restart_s=2.0)
    for name in SLOWED:
        found = schedule(workload, policy(name))
        assert found.completion_s.tolist() == [14.0]
        assert found.starved_s.tolist() == [2.0]


def test_jobs_that_wait_for_ever_are_told():
    workload = Workload((job(0, 10), job(0, 10)), Pool(1, 2, 8, 1e9), (HostChange(6, 0, False),))
    found = schedule(workload, policy("fifo"))
    assert found.completion_s.tolist() == [5.0, math.inf]
    assert found.mean_s == math.inf
    found = schedule(dataclasses.replace(workload, changes=(HostChange(0, 0, False),)), policy("equal-shares"))
    assert found.first_s.tolist() == found.starved_s.tolist() == [math.inf, math.inf]


CURVES = st.builds(
    lambda first, falls, core, data, uncached: StepCurve(
        {1: first, 2: first * falls, 4: first * falls**2}, core * first, data, uncached * first
    ),
    st.floats(0.1, 2), st.floats(0.5, 0.95), none_or(1e-6, 8), st.floats(1e8, 4e9), none_or(1e-6, 4),
)  # fmt: skip


@st.composite
def workloads(draw, most=6, hosts=2, restarts=True):
    count = draw(st.integers(1, most))
    arrivals = np.cumsum([draw(st.floats(0, 40)) for _ in range(count)]).tolist()
    jobs = tuple(
        ClusterJob(f"{n}", arrivals[n], draw(st.floats(1, 200)), draw(st.sampled_from((1, 2, 4))), draw(CURVES), 5.0)
        for n in range(count)
    )
    lost_s = sorted(draw(st.lists(st.floats(1, 100), max_size=2)))
    changes = tuple(HostChange(at_s, 0, bool(n % 2)) for n, at_s in enumerate(lost_s))
    restart_s = draw(st.sampled_from((0.0, 7.0))) if restarts else 0.0
    return Workload(jobs, Pool(hosts, 4, 16, 2e9), changes, restart_s)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from(SLOWED))
def test_nothing_is_lost_or_made_up(workload, name):
    recorded = Recorded(policy(name))
    found = schedule(workload, recorded)
    assert schedule(workload, policy(name)).completion_s.tolist() == found.completion_s.tolist()
    assert np.isfinite(found.completion_s).all()
    ends_s = [*(state.now_s for state, _ in recorded.kept[1:]), found.end_s]
    spans = [end_s - state.now_s for (state, _), end_s in zip(recorded.kept, ends_s, strict=True)]
    # Little's law: jobs that are there, over time, are the sum of their times.
    there = sum(len(state.jobs) * span for (state, _), span in zip(recorded.kept, spans, strict=True))
    assert there == pytest.approx(found.completion_s.sum())
    given_s = np.zeros(len(workload.jobs))
    for (_, decision), span in zip(recorded.kept, spans, strict=True):
        for number, part in decision.allotments.items():
            given_s[number] += part.devices * span
    assert given_s == pytest.approx(found.device_s)
    assert (found.starved_s <= found.completion_s * (1 + 1e-9)).all()
    for number, one in enumerate(workload.jobs):
        alone_s = min(one.curve.compute_s[size] for size in workload.sizes(number)) * one.steps
        assert found.completion_s[number] >= alone_s * (1 - 1e-9)
    if name == "fifo" and not workload.changes:
        assert (np.diff(found.first_s + [one.arrival_s for one in workload.jobs]) >= 0).all()


@settings(max_examples=12, deadline=None)
@given(st.lists(TINY, min_size=1, max_size=3, unique=True))
def test_the_exact_search_equals_brute_force(drawn):
    drawn = sorted(drawn)
    jobs = tuple(job(at_s, steps, 2, StepCurve({1: 1.0, 2: falls})) for at_s, steps, falls in drawn)
    found = schedule(Workload(jobs, Pool(1, 2, 8, 1e9)), policy("exact"))
    assert found.completion_s.sum() == pytest.approx(_least_sum(0.0, {}, drawn), rel=1e-9)


def _least_sum(now_s, left, coming):
    """The least sum of completion times on two devices, where parts change when jobs come or end."""
    if not left and coming:
        now_s = max(now_s, coming[0][0])
    left = {**left, **{one: one[1] for one in coming if one[0] <= now_s}}
    coming = [one for one in coming if one[0] > now_s]
    if not left:
        return 0.0
    best = math.inf
    ways = [{one: 2} for one in left] + [{a: 1, b: 1} for a in left for b in left if a < b] + [{one: 1} for one in left]
    for way in ways:
        step_s = {one: one[2] if count == 2 else 1.0 for one, count in way.items()}
        ends_s = [now_s + left[one] * step_s[one] for one in way]
        next_s = min([*ends_s, *(one[0] for one in coming)])
        done = {one for one, end_s in zip(way, ends_s, strict=True) if end_s <= next_s}
        after = {
            one: steps - ((next_s - now_s) / step_s[one] if one in way else 0.0)
            for one, steps in left.items() if one not in done
        }  # fmt: skip
        best = min(best, sum(next_s - one[0] for one in done) + _least_sum(next_s, after, coming))
    return best


def test_too_many_jobs_for_the_exact_search():
    workload = Workload(tuple(job(n, 10 + n) for n in range(4)), Pool(2, 2, 8, 1e9))
    few = dataclasses.replace(policy("exact"), most_states=3)
    with pytest.raises(ValueError, match=r"4 jobs have more than 3 states.*give fewer jobs"):
        schedule(workload, few)


def test_the_planners_curve():
    cluster, model = example_cluster(2, 2), chain(4, flop=1e11, activation_bytes=1e6, parameter_bytes=1e6)
    curve = planned_curve(model, cluster, 8, micro_batches=4)
    whole = plan_model(model, cluster, batch=8, micro_batches=4).plan.step_s
    assert curve.sizes == (1, 2, 4)
    assert curve.compute_s[4] == pytest.approx(whole)
    assert curve.compute_s[1] > curve.compute_s[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: StepCurve({}), "compute_s is empty"),
        (lambda: job(0, 1, 1, StepCurve({2: 1.0})), "devices is 1, but must be at least 2"),
        (lambda: Pool(0, 1, 1, 1), "hosts is 0"),
        (lambda: Workload((), Pool(1, 1, 1, 1)), "jobs is empty"),
        (lambda: Workload((job(1, 1), job(0, 1)), Pool(1, 2, 1, 1)), "jobs isn't in the order"),
        (lambda: Workload((job(0, 1),), Pool(1, 2, 1, 1), (HostChange(0, 1, False),)), "a change is of host 1"),
        (lambda: Workload((job(0, 1, 2, StepCurve({2: 1.0})),), Pool(1, 1, 1, 1)), "give a larger cluster"),
        (lambda: policy("fair"), "there is no policy named 'fair'"),
    ],
)
def test_wrong_workloads_are_told(wrong, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        wrong()


def test_a_policy_that_gives_away_too_much_is_told():
    class Greedy(Policy):
        def allot(self, workload, state):
            decision = POLICIES["fifo"]().allot(workload, state)
            parts = {n: dataclasses.replace(part, cores=100.0) for n, part in decision.allotments.items()}
            return dataclasses.replace(decision, allotments=parts)

    with pytest.raises(ValueError, match="host 0: the policy gives away"):
        schedule(Workload((job(0, 1),), Pool(1, 2, 8, 1e9)), Greedy())


CURVE = StepCurve({1: 1.0, 2: 0.5, 4: 0.25})
LINES = (
    "one,worker,2,Terminated,100,150,600,10,100,V100",
    "one,ps,1,Terminated,90,160,400,30,,",
    "two,worker,1,Terminated,105,115,100,2.5,50,MISC",
    "lost,worker,1,Failed,100,110,100,1,100,V100",
    "plain,ps,1,Terminated,100,110,100,1,0,",
)


def written(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines))
    return path


def test_jobs_by_hand(tmp_path):
    trace = read_jobs(written(tmp_path, *LINES), [CURVE], storage_factor=2.0, checkpoint_s=5.0)
    assert trace.left_out == {"not terminated": 1, "without a device": 1}
    one, two = trace.jobs
    # Two workers of 6 cores and a server of 4; 70 seconds at half a second a step.
    assert (one.name, one.arrival_s, one.devices, one.steps, one.checkpoint_steps) == ("one", 0.0, 2, 140.0, 10.0)
    assert (one.curve.core_s, one.curve.data_bytes, one.curve.uncached_s) == (8.0, 50 * 2**30, 1.0)
    assert (two.arrival_s, two.devices, two.steps) == (15.0, 1, 10.0)
    # With all that it asked for it takes as long as it took.
    pool = Pool(1, 4, 64, 2**40)
    assert schedule(Workload(trace.jobs, pool), policy("fifo")).completion_s.tolist() == [70.0, 10.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("one,worker,2", "line 2: it has 3 cells, but must have 10; a line has job_name, task_name"),
        ("x,w,1,Terminated,1,2,soon,1,100,V", "line 2: plan_cpu is 'soon', but must be a finite number of at least 0"),
        ("x,w,1,Terminated,9,2,1,1,100,V", "line 2: end_time is '2', but must be a finite number of at least 9"),
        ("x,w,1,Terminated,,2,1,1,100,V", "line 2: start_time is '', but must not be empty"),
        ("x,w,1,Terminatd,1,2,1,1,100,V", "line 2: status is 'Terminatd', but must be one of Terminated, Running"),
    ],
)
def test_broken_lines_are_told_with_the_remedy(tmp_path, line, said):
    with pytest.raises(ValueError, match=f"trace.csv, {re.escape(said)}.*mend the line, or leave it out"):
        read_jobs(written(tmp_path, LINES[0], line), [CURVE])


def test_drawn_traces_are_in_the_columns_and_the_same_again(tmp_path):
    text = drawn_jobs(5, 400, 20.0)
    assert text == drawn_jobs(5, 400, 20.0) != drawn_jobs(6, 400, 20.0)
    assert text.startswith("job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type")
    jobs = read_jobs(written(tmp_path, text), [CURVE]).jobs
    assert len(jobs) == 400
    # Poisson arrivals: the gaps' mean and standard deviation are alike, within three standard errors.
    gaps = np.diff([job.arrival_s for job in jobs])
    assert abs(gaps.mean() - 20) < 3 * 20 / 20
    assert abs(gaps.std() - 20) < 3 * 20 * 2 / 20
    hosts = drawn_hosts(5, 3, 1e4, 1e-3, 100.0)
    assert hosts.startswith("machine_id,time_stamp,failure_domain_1,failure_domain_2,cpu_num,mem_size,status\n")
    changes = read_host_changes(written(tmp_path, hosts), 3)
    assert all(not change.present for change in changes if change.at_s == min(c.at_s for c in changes))
    for host in range(3):
        own = [change.present for change in changes if change.host == host]
        assert own == [bool(n % 2) for n in range(len(own))]
        assert len(own) >= 2


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("alpa_dejavu.playground.jobs.planned_curve", lambda *_, **__: CURVE)
    path = str(tmp_path / "drawn.csv")
    assert command("draw-jobs", path, "--jobs", 8).output == f"wrote {path}\n"
    asked = "jobs", path, "--cluster", "p3.16xlarge", "--cores", 64, "--memory-gib", 488, "--model", "gpt-350m"
    said = command(*asked).output
    assert "8 jobs on 1 hosts of 8 devices" in said
    assert all(name in said for name in ("fifo", "equal-shares", "sensitivity"))
    written(tmp_path, "one,two").rename(path)
    wrong = command(*asked)
    assert wrong.exit_code == 1
    assert "drawn.csv, line 1: it has 2 cells" in wrong.output


def command(*words):
    return CliRunner().invoke(main, ["playground", *map(str, words)])


def test_files_without_jobs_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"no job that can be run .it has no line"):
        read_jobs(written(tmp_path), [CURVE])
    with pytest.raises(ValueError, match="1 not terminated"):
        read_jobs(written(tmp_path, LINES[3]), [CURVE])
    with pytest.raises(ValueError, match="can't be read"):
        read_jobs(tmp_path / "none.csv", [CURVE])


def test_hosts_are_lost_and_come_back(tmp_path):
    lines = ("a,10,1,x,64,100,USING", "b,10,1,x,64,100,USING", "a,30,1,x,64,100,REPAIR", "c,11,1,x,64,100,OFFLINE",
             "a,50,1,x,64,100,USING", "b,20,1,x,64,100,USING")  # fmt: skip
    changes = read_host_changes(written(tmp_path, *lines), 2)
    assert changes == (HostChange(20, 0, False), HostChange(40, 0, True))
    with pytest.raises(ValueError, match="line 1: time_stamp is 'then'"):
        read_host_changes(written(tmp_path, "a,then,1,x,64,100,USING"), 2)
