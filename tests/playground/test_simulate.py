"""The engine: the clock, what links carry, faults, the same again, and going on after an interruption."""

from __future__ import annotations

import math
import pathlib
import re

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.playground import EXCHANGES, Exchange, Job, Until, problem, simulate
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground.exchanges import AllReduce
from alpa_dejavu.playground.fault import Crash, LinkRate
from alpa_dejavu.playground.problems import PROBLEMS
from alpa_dejavu.testing import example_cluster
from plans import example_plan
from seen_training import simulated


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

    history = simulated(Job(None, 1.0, num_bytes=1), (2, 2), Script(program), seconds=9.0)
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

    simulated(Job(None, 1.0, num_bytes=1), (1, 4), Script(program), seconds=2.0)
    assert order == [1, 2, 3, 0]


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
        return simulated(job, (1, 4), way, steps=12, looks=3, folder=folder)

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
        simulated(job, (1, 4), way, steps=13, folder=tmp_path)


@pytest.mark.parametrize("name", ["server", "stale-server", "rolling-server", "sharded-server"])
def test_a_worker_that_is_lost_while_it_computes_isn_t_waited_for(name):
    from alpa_dejavu.playground.exchanges import ShardedServer

    way = ShardedServer(2) if name == "sharded-server" else name
    job, faults = Job(None, (1.0, 1.0, 1.0, 1.5), num_bytes=1), [Crash(3, 1.2)]
    run = simulated(job, (1, 4), way, steps=6, faults=faults)
    assert run.end == "steps"
    assert run.worker_steps.tolist() == [6, 6, 6, 0]
    assert run.lost_updates == 1


def test_a_program_that_yields_something_else_is_told_what_it_may():
    def program(worker):
        yield 3

    with pytest.raises(TypeError, match="a program yielded 3, but must yield what compute, receive or sleep return"):
        simulated(Job(None, 1.0, num_bytes=1), (1, 1), Script(program), steps=1)


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
    run = simulated(job, (1, 2), "all-reduce", steps=15, looks=0)
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
        simulated(Job(digits, 1.0), (1, 1), "gossip", steps=1, folder=pathlib.Path("/no"))


def test_every_exchange_has_a_name_and_does_with_one_worker():
    for name in EXCHANGES:
        run = simulated(Job(None, 1.0, num_bytes=8), (1, 1), name, steps=3)
        # Zeno++ judges nothing before its server has computed a gradient of its own, on the same device.
        waits_s = 1.0 if name == "zeno-server" else 0.0
        assert (run.end, run.end_s, run.num_bytes) == ("steps", 3.0 + waits_s, 0.0), name


def test_the_page_s_examples_run(capsys):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "concepts" / "playground.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block.replace("steps=100", "steps=10"), {"__name__": "example"})
    assert capsys.readouterr().out.startswith("all-reduce: a loss of ")


def hosts(count, devices=1):
    return named_cluster("p3.16xlarge", count, devices)


def seconds(compute_s, num_bytes=8.0):
    return Job(None, compute_s, num_bytes=num_bytes)


@pytest.fixture
def world(monkeypatch):
    """The worlds that were simulated, the last one last."""
    made, begin = [], VirtualWorld.begin
    monkeypatch.setattr(VirtualWorld, "begin", lambda self, exchange: (made.append(self), begin(self, exchange)))
    return made


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_a_link_that_is_cut_at_the_end_is_waited_for(name):
    # Either nothing was to be sent over the link any more, or all of it arrives.
    job, until = seconds(1.0, 1e8), Until(steps=2)
    whole = simulate(job, hosts(2), name, until=until, looks=1)
    for cut_s in (1.001, 2.001, 2.02):
        run = simulate(job, hosts(2), name, until=until, looks=1, faults=[LinkRate((0, 1), 0.0, cut_s, 50.0)])
        assert run.end == whole.end == "steps"
        assert run.worker_steps.tolist() == [2, 2]
        assert run.steps[-1] == whole.steps[-1] == 4
        assert run.lost_updates == 0


@pytest.mark.parametrize("compute_s", [0.0, [0.0]])
def test_gradients_without_seconds_need_a_number_of_steps(compute_s):
    with pytest.raises(ValueError, match=r"compute_s is \[?0\.0\]?, but must be above 0 where until.steps is None"):
        simulate(seconds(compute_s), hosts(1), "local-sgd", until=Until(seconds=3.0))
    run = simulate(seconds(compute_s), hosts(1), "local-sgd", until=Until(seconds=3.0, steps=4))
    assert (run.end, run.steps[-1], run.end_s) == ("steps", 4, 0.0)
