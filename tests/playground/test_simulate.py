"""The engine: the clock, what links carry, faults, the same again, and going on after an interruption."""

import math
import pathlib
import re

import numpy as np
import pytest

from alpa_dejavu.playground import EXCHANGES, Exchange, Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import (
    AllReduce,
    AsynchronousGossip,
    AsynchronousServer,
    Gossip,
    PushSum,
    RollingServer,
    SynchronousServer,
)
from alpa_dejavu.playground.fault import Crash, LinkRate, SlowDown
from alpa_dejavu.playground.problems import PROBLEMS
from alpa_dejavu.playground.topology import TOPOLOGIES
from alpa_dejavu.problem import Cluster, Device, Link
from alpa_dejavu.testing import example_cluster
from plans import example_plan

HISTORY = "time_s steps samples staleness busy_s idle_s worker_steps links link_bytes link_messages sent_bytes".split()


@pytest.fixture(scope="module")
def digits():
    return problem("digits-mlp")


class Script(Exchange):
    """Runs the given program."""

    def __init__(self, program):
        self.run = program

    def run(self, worker):
        raise AssertionError("it is replaced")


def test_messages_over_one_card_share_it_by_hand():
    # Both devices of host 0 send 1e9 bytes at once over a card of 1e9 bytes a second: 2 seconds, and the latency.
    arrived = {}

    def program(worker):
        if worker.number < 2:
            worker.send(worker.number + 2, "x", None, 1e9)
        else:
            yield worker.receive("x")
            arrived[worker.number] = worker.world.now_s

    history = simulate(Job(None, 1.0, num_bytes=1), example_cluster(2, 2), Script(program), until=Until(seconds=9.0))
    assert arrived == {2: pytest.approx(2.0001), 3: pytest.approx(2.0001)}
    assert history.links.tolist() == [[0, 1]]
    assert (history.link_bytes.tolist(), history.link_messages.tolist()) == ([2e9], [2])


def test_what_happens_at_the_same_time_happens_in_the_order_in_which_it_was_asked_for():
    order = []

    def program(worker):
        yield worker.sleep(1.0 if worker.number else 0.5)
        if not worker.number:
            yield worker.sleep(0.5)
        order.append(worker.number)

    simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 4), Script(program), until=Until(seconds=2.0))
    assert order == [1, 2, 3, 0]


def test_messages_to_one_worker_come_in_the_order_in_which_one_sent_them_at_the_link_s_rate():
    found = []

    def program(worker):
        if worker.number == 0:
            for tag, num_bytes in (("large", 2e9), ("small", 1e9), ("none", 0.0)):
                worker.send(1, tag, None, num_bytes)
        elif worker.number == 1:
            for tag in ("large", "small", "none"):
                yield worker.receive(tag)
                found.append((tag, worker.world.now_s))

    link = Link(0.5, 1e9)
    device = Device("d", 2.0**30, {"float32": 1e12}, 1e12, 1e11)
    cluster = Cluster.uniform("c", ["a", "b"], device, 1, link, link)
    simulate(Job(None, 1.0, num_bytes=1), cluster, Script(program), until=Until(seconds=9.0))
    assert found == [("large", 2.5), ("small", 3.5), ("none", 3.5)]


def test_a_receive_gives_up_after_its_timeout_with_what_is_there():
    found = []

    def program(worker):
        if worker.number == 0:
            messages = yield worker.receive("x", 3, timeout_s=5.0)
            found.append((worker.world.now_s, [message.sender for message in messages]))
        elif worker.number < 3:
            yield worker.sleep(3.0 - worker.number)
            worker.send(0, "x")

    simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 4), Script(program), until=Until(seconds=9.0))
    assert found == [(5.0, [1, 2])]


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("way", [Gossip, PushSum])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_rounds_in_machine_code_take_the_seconds_of_the_queue(name, way, spread):
    # Messages take as long as computing, so that those of different rounds share links.
    job = Job(None, 1e-4, num_bytes=1e5, spread=spread)
    fast, slow = (
        simulate(job, example_cluster(3, 4), way(name), until=Until(steps=12), looks=5, seed=3, faults=faults)
        for faults in ([], [SlowDown(0, 1.0)])
    )
    for field in HISTORY:
        np.testing.assert_allclose(getattr(fast, field), getattr(slow, field), rtol=1e-9, atol=1e-15, err_msg=field)
    assert fast.end == slow.end == "steps"


def test_another_seed_is_another_history_and_the_same_one_is_not(digits):
    job = Job(digits, 0.1, spread=0.2)
    one, same, other = (
        simulate(job, example_cluster(1, 4), "async-server", until=Until(seconds=1.0), looks=3, seed=seed)
        for seed in (7, 7, 8)
    )
    assert one.same(same)
    assert not one.same(other)


@pytest.mark.parametrize("way", ["async-server", "gossip", "all-reduce"])
def test_an_interrupted_run_goes_on_to_the_same_history(digits, tmp_path, monkeypatch, way):
    from alpa_dejavu.playground import _learner

    computed = []
    whole = _learner.JaxLearner._computed

    def counted(self, chosen):
        computed.append(len(chosen))
        if len(computed) == stop:
            raise KeyboardInterrupt
        return whole(self, chosen)

    monkeypatch.setattr(_learner.JaxLearner, "_computed", counted)
    job, stop = Job(digits, 0.1, spread=0.3), -1

    def run(folder):
        computed.clear()
        return simulate(job, example_cluster(1, 4), way, until=Until(steps=12), looks=3, folder=folder)

    expected = run(None)
    every, stop = len(computed), len(computed) // 2
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    stop = -1
    assert run(tmp_path).same(expected)
    assert len(computed) == every - (every // 2 - 1)
    assert run(tmp_path).same(expected)
    assert computed == []
    with pytest.raises(ValueError, match=r"holds the run .*; give another folder"):
        simulate(job, example_cluster(1, 4), way, until=Until(steps=13), folder=tmp_path)


def test_looks_are_spread_over_the_time_or_the_steps(digits):
    job = Job(digits, 1.0)
    by_time = simulate(job, example_cluster(1, 2), AllReduce(), until=Until(seconds=10.0), looks=5)
    by_steps = simulate(job, example_cluster(1, 2), AllReduce(), until=Until(steps=10), looks=5)
    assert by_time.time_s.tolist() == [0, 2, 4, 6, 8, 10]
    assert by_time.end == "time"
    assert by_steps.steps.tolist() == [0, 4, 8, 12, 16, 20]
    assert by_time.accuracy[0] < by_steps.accuracy[-1]
    assert by_steps.seconds_to(float(by_steps.loss.min())) <= by_steps.end_s
    assert by_steps.seconds_to(0.0) == math.inf


def test_a_slow_down_slows_and_ends():
    run = simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 2), AllReduce(), until=Until(steps=6),
                   faults=[SlowDown(1, 3.0, at_s=1.5, until_s=6.0)])  # fmt: skip
    # Two steps of a second begin before, then two of three seconds, then two of one.
    assert run.end_s == pytest.approx(2 + 2 * 3 + 2, abs=1e-3)


def test_a_worker_lost_within_an_all_reduce_stalls_it_and_the_end_says_who_waits():
    job = Job(None, 1.0, num_bytes=1e9)
    run = simulate(job, example_cluster(1, 3), AllReduce(), until=Until(steps=6), faults=[Crash(1, 1.05)])
    assert run.end.startswith("stalled: nothing is under way any more, but these workers wait for messages")
    assert "('gradients', 0)" in run.end


@pytest.mark.parametrize("name", ["server", "stale-server", "rolling-server", "sharded-server"])
def test_a_worker_that_is_lost_while_it_computes_isn_t_waited_for(name):
    from alpa_dejavu.playground.exchanges import ShardedServer

    way = ShardedServer(2) if name == "sharded-server" else name
    job, faults = Job(None, (1.0, 1.0, 1.0, 1.5), num_bytes=1), [Crash(3, 1.2)]
    run = simulate(job, example_cluster(1, 4), way, until=Until(steps=6), faults=faults)
    assert run.end == "steps"
    assert run.worker_steps.tolist() == [6, 6, 6, 0]
    assert run.lost_updates == 1


def test_an_asynchronous_server_trains_on_without_a_crashed_worker_and_with_one_that_comes_back(digits):
    job = Job(digits, 1.0)
    gone, back = (
        simulate(job, example_cluster(1, 4), AsynchronousServer(), until=Until(seconds=20.5), faults=[crash], looks=2)
        for crash in (Crash(3, 5.5), Crash(3, 5.5, back_s=10.2))
    )
    assert gone.worker_steps.tolist() == [20, 20, 20, 5]
    assert back.worker_steps.tolist() == [20, 20, 20, 15]
    assert gone.loss[-1] < gone.loss[0]


def test_a_rolling_server_skips_who_isn_t_there():
    run = simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 4), RollingServer(), until=Until(steps=9),
                   faults=[Crash(3, 0.0)])  # fmt: skip
    assert run.end == "steps"
    assert run.worker_steps.tolist() == [9, 9, 9, 0]


def test_all_dead_is_an_end():
    run = simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 2), AsynchronousGossip(), until=Until(steps=9),
                   faults=[Crash(0, 1.5), Crash(1, 2.5)])  # fmt: skip
    assert run.end == "no worker is left"
    assert run.end_s == 2.5


def test_a_link_that_is_cut_holds_up_what_goes_over_it():
    job = Job(None, 1.0, num_bytes=1e8)
    runs = [
        simulate(job, example_cluster(2, 1), SynchronousServer(), until=Until(steps=2), faults=faults)
        for faults in ([], [LinkRate((0, 1), 0.0, 1.05, 3.05)], [LinkRate((0, 1), 0.5)])
    ]
    free_s = 2 * (1 + 2 * (0.1 + 1e-4))
    assert [run.end_s for run in runs] == pytest.approx([free_s, free_s + 2.0, free_s + 4 * 0.1])


def test_faults_that_can_t_be_are_said():
    with pytest.raises(ValueError, match=r"worker is 9, but must be one of 0..1"):
        simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 2), "gossip", until=Until(steps=1),
                 faults=[Crash(9, 1.0)])  # fmt: skip
    with pytest.raises(ValueError, match=r"hosts is \(0, 7\), but must be of 0..0"):
        simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 2), "gossip", until=Until(steps=1),
                 faults=[LinkRate((0, 7), 0.5)])  # fmt: skip
    with pytest.raises(ValueError, match=r"back_s is 1.0, but must be after at_s"):
        Crash(0, 2.0, 1.0)


def test_a_program_that_yields_something_else_is_told_what_it_may():
    def program(worker):
        yield 3

    with pytest.raises(TypeError, match="a program yielded 3, but must yield what compute, receive or sleep return"):
        simulate(Job(None, 1.0, num_bytes=1), example_cluster(1, 1), Script(program), until=Until(steps=1))


def test_workers_are_devices_or_pipelines_of_a_plan(digits):
    cluster = example_cluster(2, 2)
    predicted = Job.predicted(digits, cluster)
    assert len(predicted.compute_s) == 4
    assert 0 < predicted.compute_s[0] == predicted.compute_s[3] < 1
    job = Job.of_plan(None, example_plan(), cluster, copies=2, num_bytes=1e6)
    run = simulate(job, cluster, AllReduce(), until=Until(steps=3))
    assert len(run.worker_steps) == 2
    assert run.end_s == pytest.approx(3 * (0.25 + 2 * (1e-4 + 5e5 / 1e9)))
    with pytest.raises(ValueError, match="copies is 3, but must be at most 2"):
        Job.of_plan(None, example_plan(), cluster, copies=3, num_bytes=1e6)
    unlike = Job.of_plan(None, [example_plan(), example_plan(step_s=0.5)], cluster, num_bytes=1e6)
    assert (unlike.compute_s, unlike.hosts) == ([0.25, 0.5], (0, 1))


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_each_problem_is_learned(name):
    import optax

    job = Job(problem(name), 0.1, optimizer=optax.adam(0.02), batch=16)
    run = simulate(job, example_cluster(1, 2), "all-reduce", until=Until(steps=15), looks=0)
    assert run.loss[-1] < 0.9 * run.loss[0]


def test_a_job_s_wrong_figures_are_said(digits):
    for more, said in (
        ({"batch": 0}, "batch is 0, but must be a whole number"), ({"spread": -1}, "spread is -1, but must be"),
        ({"compute_s": math.nan}, "compute_s is nan, but must be"), ({"shards": ([1], [])}, "shards\\[1\\] is empty"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            Job(**{"problem": digits, "compute_s": 1.0, **more})
    with pytest.raises(ValueError, match="num_bytes is None without a problem"):
        Job(None, 1.0)
    with pytest.raises(ValueError, match=r"folder is .* but must be a folder that is there"):
        simulate(Job(digits, 1.0), example_cluster(1, 1), "gossip", until=Until(steps=1),
                 folder=pathlib.Path("/no"))  # fmt: skip


def test_every_exchange_has_a_name_and_does_with_one_worker():
    for name in EXCHANGES:
        run = simulate(Job(None, 1.0, num_bytes=8), example_cluster(1, 1), name, until=Until(steps=3))
        # Zeno++ judges nothing before its server has computed a gradient of its own, on the same device.
        waits_s = 1.0 if name == "zeno-server" else 0.0
        assert (run.end, run.end_s, run.num_bytes) == ("steps", 3.0 + waits_s, 0.0), name


def test_the_page_s_examples_run(capsys):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "concepts" / "playground.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block.replace("steps=100", "steps=10"), {"__name__": "example"})
    assert capsys.readouterr().out.startswith("all-reduce ")


def test_a_bar_is_shown_where_it_is_asked_for(monkeypatch, capsys):
    import tqdm

    monkeypatch.setattr(tqdm, "tqdm", lambda **given: tqdm.std.tqdm(**{**given, "delay": 0}))
    job, until = Job(None, 1.0, num_bytes=1), Until(steps=3)
    run = simulate(job, example_cluster(1, 2), AllReduce(), until=until, progress=True)
    assert "6/6" in capsys.readouterr().err
    assert run.same(simulate(job, example_cluster(1, 2), AllReduce(), until=until))
    assert capsys.readouterr().err == ""
