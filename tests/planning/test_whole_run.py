"""A whole training: time and price by hand, and bytes by link by the seconds of the communication model."""

import dataclasses
import functools
import itertools

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.costs.communication import AlphaBeta, Group, link_bytes
from alpa_dejavu.planning import GivenStage, estimate, plan_model
from alpa_dejavu.planning.given.whole_run import step_bytes, steps_of_tokens, whole_run
from alpa_dejavu.problem import Link, MeshConfig, Offload, Run, StageOffload, Submesh
from alpa_dejavu.report import html_report
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import chain
from unlike import cluster, host

RATE = 1e9
LINK = Link(0.0, RATE)


def wide(batch_size):
    return trained(batch_size, size=256)


@functools.cache
def planned(layers=4):
    """Two hosts of two devices, whose links have no latency and one rate."""
    where = cluster([host(name, 1e10, 2, price=9.0) for name in "ab"])
    links = tuple(tuple(LINK for _ in row) for row in where.links)
    where = dataclasses.replace(where, links=links)
    return plan_model(wide, where, batch=64, micro_batches=4, layers=layers, communication="alpha-beta", cache=False)


def test_time_and_price_by_hand():
    run, plan = whole_run(planned(), 100), planned().plan
    used = len({name for stage in plan.stages for name in stage.hosts})
    assert run.seconds == pytest.approx(100 * plan.expected_s)
    assert run.device_s == pytest.approx(100 * plan.expected_s * 2 * used)
    assert run.price == pytest.approx(100 * plan.expected_s / 3600 * 9.0 * used)
    assert run.deviation_s == pytest.approx(100 * planned().confidence.deviation_s)
    assert run.device_bytes == max(stage.memory_bytes for stage in plan.stages)


def test_bytes_by_link_are_those_whose_seconds_the_step_has():
    """Without latency a collective's seconds are the bytes that each device sends over the rate; all devices do."""
    made = planned()
    plan, count = made.plan, made.run.num_micro_batches
    by_seconds = 0.0
    for stage in plan.stages:
        busy_s = count * stage.collective_s + stage.synchronisation_s
        by_seconds += busy_s * RATE * stage.submesh.num_devices
    for one, other in itertools.pairwise(plan.stages):
        shares = min(len(one.hosts), len(other.hosts)) if set(one.hosts) != set(other.hosts) else 2
        by_seconds += count * (other.forward_boundary_s + one.boundary_s - one.forward_boundary_s) * RATE * shares
    assert sum(step_bytes(made).values()) == pytest.approx(by_seconds, rel=1e-6)
    assert by_seconds > 0


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_bytes_of_two_stages_by_hand(remat):
    """Two layers each, of two devices: one divides samples, the other each layer's product."""
    where = cluster([host(name, 1e10, 2) for name in "ab"])
    configs = MeshConfig((2, 1), 2, 1, {}), MeshConfig((1, 2), 1, 2, {}, remat=remat)
    given = [GivenStage(2 * n, 2 * n + 1, Submesh(1, 2), config, ("ab"[n],)) for n, config in enumerate(configs)]
    made = estimate(chain(4, parameter_bytes=1000.0, activation_bytes=100.0, exchanged=(400.0,)), where, Run(5), given)
    # A layer's 400 bytes are of forward and backward together; with remat the forward half comes again.
    all_reduced = 2 * 400.0 * (1.5 if remat == "layer" else 1.0)
    assert step_bytes(made) == {
        ("a", "a"): 2 * 2000.0,  # an all-reduce among two sends all gradients once from each
        ("a", "b"): 5 * 100.0,
        ("b", "a"): 5 * 100.0,
        ("b", "b"): 5 * 2 * all_reduced,
    }


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_sends_what_takes_its_seconds(collective):
    where = dataclasses.replace(example_cluster(1), links=((LINK,),))
    group = Group(where, (0,) * 4)
    ((ends, sent),) = link_bytes(collective, 1e6, group).items()
    assert ends == (0, 0)
    assert sent / 4 == pytest.approx(float(AlphaBeta().seconds(collective, 1e6, group)) * RATE)
    assert link_bytes(collective, 1e6, Group(where, (0,))) == {}


def test_the_report_has_the_whole_training():
    page = html_report(planned(), steps=1000)
    assert "The whole training" in page
    assert "1000 steps in" in page
    assert "The whole training" not in html_report(planned())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "5", "--tokens", "9"], "--steps and --tokens are given, but only one of them may be"),
        *(([name, "9" * 400], f"{name} is 999") for name in ("--steps", "--tokens", "--samples")),
        (["--tokens", "9"], "tokens is 9, but must be left out for wresnet-1b"),
    ],
)
def test_options_that_contradict_are_told_before_anything_is_planned(options, said):
    asked = ["plan", "--model", "wresnet-1b", "--cluster", "p3.16xlarge", "--batch", "64"]
    run = CliRunner().invoke(main, [*asked, *options])
    assert run.exit_code == 1
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_memory_of_a_host_is_that_of_all_its_stages_devices():
    there = StageOffload(Offload(1.0), host_bytes=2.0**30)
    stages = tuple(dataclasses.replace(stage, offload=there) for stage in planned().plan.stages)
    made = dataclasses.replace(planned(), plan=dataclasses.replace(planned().plan, stages=stages))
    devices = made.plan.devices_of_hosts
    by_hand = {name: sum(s.submesh.devices_per_host for s in stages if name in s.hosts) * 2**30 for name in devices}
    assert whole_run(made, 1).host_bytes == by_hand


def test_tokens_need_a_sequence():
    assert steps_of_tokens(2**20 + 1, 256, "gpt-1.3b") == 5
    with pytest.raises(ValueError, match=r"tokens is 5, but must be left out for wresnet-1b.*give the number of steps"):
        steps_of_tokens(5, 256, "wresnet-1b")
    assert steps_of_tokens(2**20 + 1, 256, "own:step", 1024) == 5
