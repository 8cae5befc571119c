"""Plans whose stages offload what they keep: where memory binds, by every door, and with errors that help."""

import dataclasses
import itertools

import pytest

from alpa_dejavu.clusters.changed_cluster import slowed
from alpa_dejavu.clusters.offload_choices import with_all_shares, with_offload
from alpa_dejavu.costs.memory import ModelMemory, stage_memory
from alpa_dejavu.costs.offload import copies
from alpa_dejavu.planning import estimate, given_stages, plan_model
from alpa_dejavu.planning.changed.kept import Kept, read_kept, write_with_kept
from alpa_dejavu.planning.changed.replanning import replan
from alpa_dejavu.planning.given.figures import lacking
from alpa_dejavu.planning.search.runtimes import runtimes_of
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import HostMemory, MemoryShares, NoPlanError, Nvme, Offload, Run
from alpa_dejavu.report.explanation import explain
from alpa_dejavu.testing import example_cluster
from models import chain

MEMORY = HostMemory(2.0**33, 1e10, 5e9, 1e10, Nvme(2.0**40, 2e9, 1e9))


def cluster(memory_bytes=2.0**26, memory=MEMORY, devices=2, hosts=1):
    bare = example_cluster(hosts, devices, memory_bytes)
    return dataclasses.replace(bare, hosts=tuple(dataclasses.replace(host, memory=memory) for host in bare.hosts))


def model(parameter_bytes=2.0**25):
    """Four layers of 32 MiB of parameters each: 512 MiB with gradients and the optimizer's state."""
    return chain(4, flop=1e10, parameter_bytes=parameter_bytes, activation_bytes=2.0**20)


def planned(offload, on=None, **options):
    return plan_model(model(), on or cluster(), batch=4, micro_batches=2, offload=offload, cache=False, **options)


def test_what_does_not_fit_on_devices_fits_with_their_host():
    with pytest.raises(NoPlanError, match=r"0.19 GiB are missing there; .*; tried, and enough: --offload cpu$"):
        planned("none")
    made = planned("cpu").plan
    assert all(stage.offloaded.any for stage in made.stages)
    assert all(stage.memory_bytes <= stage.memory_limit_bytes for stage in made.stages)
    assert not any(stage.offload.missing_bytes for stage in made.stages)
    assert not made.runs_on_alpa
    assert runtimes_of(made)["alpa"].startswith("no offload of ")


def test_less_memory_on_devices_never_makes_a_faster_plan():
    steps = [planned("cpu", cluster(2.0**power)).plan.step_s for power in (26, 26.5, 27, 28, 30)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_drives_are_used_where_the_hosts_memory_is_too_small():
    small = dataclasses.replace(MEMORY, num_bytes=2.0**28)
    with pytest.raises(NoPlanError, match="of the host's memory for each"):
        planned("cpu", cluster(memory=small))
    for offload in ("nvme", "auto"):
        made = planned(offload, cluster(memory=small)).plan
        assert any(stage.offloaded.place == "nvme" for stage in made.stages)
        assert all(stage.offload.nvme_bytes <= stage.offload.nvme_limit_bytes for stage in made.stages if stage.offload)


def test_the_search_finds_the_best_of_all_shares():
    on, whole = cluster(2.0**27, devices=1), model()
    made = planned("cpu", on).plan
    (stage,) = made.stages
    quarters = (0.0, 0.25, 0.5, 0.75, 1.0)
    best = float("inf")
    for remat in ("none", "layer"):
        for shares in itertools.product(quarters, repeat=4):
            if max(shares[1], shares[2]) > shares[0]:
                continue
            (given,) = given_stages(made)
            config = dataclasses.replace(given.config, remat=remat, offload=Offload(*shares))
            found = estimate(whole, on, Run(2), [dataclasses.replace(given, config=config)]).plan
            usable = 0.95 * found.stages[0].memory_limit_bytes
            if found.stages[0].memory_bytes <= usable:
                best = min(best, found.step_s)
    assert made.step_s == pytest.approx(best, rel=1e-9)
    assert stage.offloaded.any


def test_every_door_says_the_same(tmp_path):
    result = planned("cpu")
    path = tmp_path / "plan.json"
    write_with_kept(result.plan, Kept.of(result), path)
    again = read_plan(path)
    assert again == result.plan
    estimated = estimate(result.model, result.cluster, result.run, given_stages(again)).plan
    assert estimated.step_s == pytest.approx(again.step_s)
    assert [stage.offload for stage in estimated.stages] == [stage.offload for stage in again.stages]
    found = replan(again, read_kept(path), slow={"host-0": 2.0}).plan
    anew = planned("cpu", slowed(cluster(), "host-0", 2.0)).plan
    assert found.step_s == pytest.approx(anew.step_s)
    assert [stage.offloaded for stage in found.stages] == [stage.offloaded for stage in anew.stages]


def test_copies_and_updates_by_hand():
    on, whole = cluster(2.0**32, devices=1), model()
    plain = plan_model(whole, on, batch=4, micro_batches=2, cache=False, layers=4).plan
    (given,) = given_stages(plain)
    config = dataclasses.replace(given.config, remat="none", offload=Offload(1.0, 0.5, 0.5, 0.5))
    bare, there = (
        estimate(whole, on, Run(2), [dataclasses.replace(given, config=each)]).plan.stages[0]
        for each in (dataclasses.replace(config, offload=Offload()), config)
    )
    size, kept = 4 * 2.0**25, 4 * 2.0**20
    # One device: it has all of the host's rates, 5 GB/s of copies and 10 GB/s of memory.
    assert there.offload.forward_s == pytest.approx((size / 2 + kept / 2) / 5e9)
    assert there.offload.backward_s == pytest.approx((size / 2 + kept / 2 + size / 2) / 5e9)
    update_s = (2 * 2 * size + size + 2 * size) / 1e10
    assert there.offload.step_s == pytest.approx(size / 2 / 5e9 + update_s + size / 2 / 5e9)
    added = there.offload.forward_s + there.offload.backward_s
    assert there.collective_s == pytest.approx(bare.collective_s + added)
    assert there.offload.host_bytes == pytest.approx(2 * size + size + size + kept / 2)
    assert there.resident_bytes == pytest.approx(size / 2 + size / 2)
    assert there.activation_bytes == pytest.approx(bare.activation_bytes / 2)


def test_more_offload_than_a_host_has_is_said():
    made = planned("cpu")
    tiny = cluster(memory=dataclasses.replace(MEMORY, num_bytes=2.0**26))
    there = estimate(made.model, tiny, made.run, given_stages(made.plan)).plan
    (line,) = lacking(there)
    assert " of the hosts' for each device are missing; offload less, or add memory or drives to the hosts" in line
    assert not lacking(made.plan)


def test_an_explanation_says_what_offload_costs_and_what_memory_is_worth():
    result = planned("cpu")
    said = explain(result.plan, Kept.of(result))
    notes = " ".join(said.notes)
    assert "offloads " in notes
    assert "with twice the memory on each device the best plan takes " in notes
    what_if = {one.change: one.step_s for one in said.what_if}
    assert "offload that takes no time" in what_if
    assert said.parts["offload"] > 0
    assert sum(said.parts.values()) == pytest.approx(result.plan.step_s)
    # Twice as fast devices are asked for in two ways; hosts don't get faster in either.
    twice = {one.what: one.twice_s for one in said.sensitivities}
    assert what_if["devices that compute twice as fast"] == pytest.approx(twice["all devices"], rel=1e-6)


def test_only_devices_that_share_an_update_offload_it():
    space = planned("none", cluster(2.0**32)).space
    with_host = with_offload(space, cluster(), "cpu")
    configs = [config for row in with_host.configs for config in row if config is not None]
    assert any(config.offload.optimizer for config in configs)
    assert any(config.data_parallel > 1 and config.zero == 0 and config.offload.activations for config in configs)
    assert not any(config.offload.optimizer for config in configs if config.data_parallel > 1 and config.zero == 0)
    row = with_all_shares(space.part([0]), ["cpu"]).configs[0]
    alone = [config.offload for config in row if config and config.shape == (1, 1) and config.remat == "none"]
    assert len(alone) == len(set(alone)) == 275


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"optimizer": 1.5}, "optimizer is 1.5, but must be a share from 0 to 1"),
        ({"activations": -0.25}, "activations is -0.25, but must be a share from 0 to 1"),
        ({"optimizer": float("nan")}, "optimizer is nan, but must be a share from 0 to 1"),
        ({"gradients": 0.5}, "gradients is 0.5, but must be at most the optimizer's share, 0.0"),
        ({"optimizer": 0.5, "parameters": 1.0}, "parameters is 1.0, but must be at most the optimizer's share, 0.5"),
        ({"place": "disk"}, "place is 'disk', but must be one of 'cpu', 'nvme'"),
    ],
)
def test_wrong_shares_are_named(shares, said):
    with pytest.raises(ValueError, match=said):
        Offload(**shares)


def test_what_is_not_known_of_hosts_is_named():
    with pytest.raises(ValueError, match=r"offload is 'cpu', but must be without host_memory.*host-0 lacks; add"):
        planned("cpu", cluster(memory=None))
    no_drives = cluster(memory=dataclasses.replace(MEMORY, nvme=None))
    with pytest.raises(ValueError, match=r"offload is 'nvme', but must be without nvme.*add nvme with its rates"):
        planned("nvme", no_drives)
    assert planned("auto", no_drives).plan.stages[0].offloaded.place == "cpu"
    with pytest.raises(ValueError, match="offload is 'disk', but must be one of"):
        planned("disk")
    with pytest.raises(ValueError, match="schedule is 'zb_h1', but must be one of '1f1b'"):
        planned("cpu", schedule="zb_h1")
    stages = given_stages(planned("cpu").plan)
    with pytest.raises(ValueError, match="but must be without host_memory, which the file of host-0 lacks"):
        estimate(model(), cluster(memory=None), Run(2), stages)


def test_a_file_that_contradicts_itself_is_named(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(planned("cpu").plan, path)
    good = path.read_text()
    path.write_text(good.replace('"place": "cpu"', '"place": "tape"', 1))
    with pytest.raises(ValueError, match="place"):
        read_plan(path)
    path.write_text(good.replace('"optimizer": ', '"optimizer": 0.0, "was": ', 1))
    with pytest.raises(ValueError, match="was"):
        read_plan(path)


def test_nothing_is_offloaded_where_all_fits():
    roomy = cluster(2.0**32)
    none, auto = planned("none", roomy).plan, planned("auto", roomy).plan
    assert auto.step_s == none.step_s
    assert not any(stage.offloaded.any for stage in auto.stages)


def test_a_part_is_offloaded_where_all_of_it_is_too_much_for_the_host():
    # One device of 435 MiB: it lacks 77 MiB of 512. All of one kind is more than the host has.
    small = dataclasses.replace(MEMORY, num_bytes=150 * 2.0**20, nvme=None)
    on = cluster(2.0**28 * 1.7, small, devices=1)
    made = planned("cpu", on).plan
    assert any(0 < share < 1 for share in made.stages[0].offloaded.shares)
    assert not made.stages[0].offload.missing_bytes


def test_who_updates_follows_gradients_where_there_is_no_optimizer_state():
    whole = chain(4, parameter_bytes=2.0**20)
    plain = dataclasses.replace(whole, tensors=tuple(one for one in whole.tensors if one.role != "optimizer"))
    for model_, per_parameter in ((whole, 2 + 1 + 1), (plain, 1 + 1)):
        memory, share = ModelMemory.of(model_), 1 / 4
        shares = MemoryShares(share, share, share if model_ is whole else 1.0, 1.0, 1.0, 1.0)
        there = stage_memory(memory, shares, offload=Offload(1.0, 1.0, 1.0)).elsewhere
        assert there.resident[0, -1] == pytest.approx(per_parameter * 4 * 2.0**20 / 4)


def test_a_step_without_gradients_updates_nothing():
    forward = chain(4, parameter_bytes=2.0**25, training=False)
    memory = ModelMemory.of(forward)
    shares = MemoryShares(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    offload = Offload(1.0, 1.0, 1.0)
    found = copies(memory, shares, memory.activations, offload, MEMORY.share(1))
    assert not any(part.any() for part in found.step)
    assert found.forward[0][0, -1] == pytest.approx(4 * 2.0**25 / 5e9)
    assert stage_memory(memory, shares, offload=offload).elsewhere.resident[0, -1] == 4 * 2.0**25


def test_drives_are_read_and_written_by_hand():
    memory = ModelMemory.of(chain(4, parameter_bytes=2.0**25))
    shares, size = MemoryShares(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 4 * 2.0**25
    found = copies(memory, shares, memory.activations, Offload(1.0, place="nvme"), MEMORY.share(1))
    # Adam's moments, and float32 parameters of which the state has no copy.
    assert found.step[3][0, -1] == pytest.approx((2 * size + size) / 2e9)
    assert found.step[4][0, -1] == pytest.approx((2 * size + size) / 1e9)


def test_parameters_are_offloaded_where_each_device_needs_its_part_alone():
    space = with_offload(planned("none", cluster(2.0**32)).space, cluster(), "cpu")
    configs = [config for row in space.configs for config in row if config is not None]
    assert any(config.offload.parameters for config in configs if config.zero == 3)
    assert not any(config.offload.parameters for config in configs if config.zero < 3 and config.data_parallel > 1)
