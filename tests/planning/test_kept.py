"""A plan's file and what is kept beside it: one without the other is named, and a crash leaves a pair."""

import dataclasses
import gzip
import itertools
import json
import os

import pytest

from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.changed.kept import Kept, kept_path, read_kept, write_with_kept
from alpa_dejavu.planning.search.models.model_cache import packed_json
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import ReductionServer, Run
from alpa_dejavu.testing import example_cluster
from models import chain, task_of
from plans import example_plan

CLUSTER = example_cluster(1)


def pair(flop=1e9, batch=32):
    """A plan, and what is kept of it: its model's layers have so many operations."""
    plan = example_plan(cluster=CLUSTER.name, batch=batch)
    return plan, Kept(chain(4, flop=flop), CLUSTER, Run(4), batch, SpaceRules(remat=("none",), zero=(0,)))


def flop_of(kept):
    return kept.model.layers[0].forward.flop[0]


def data_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def old_named(path, data):
    """What is kept as it was written before there were digests."""
    old = path.with_name(f"{path.stem}.kept.json.gz")
    old.write_bytes(packed_json({key: value for key, value in data.items() if key != "plan_sha256"}))
    return old


def test_plans_that_differ_in_their_ending_have_each_their_own(tmp_path):
    for n, name in enumerate(("run.a", "run.b", "run"), 1):
        write_with_kept(*pair(n), tmp_path / name)
    assert [flop_of(read_kept(tmp_path / name)) for name in ("run.a", "run.b", "run")] == [1, 2, 3]
    assert kept_path(tmp_path / "run.a").name == "run.a.kept.json.gz"


def test_a_plan_that_has_changed_is_told_from_the_one_that_was_kept(tmp_path):
    plan, kept = pair()
    path = tmp_path / "plan.json"
    write_with_kept(plan, kept, path)
    write_plan(dataclasses.replace(plan, notes=("by hand",)), path)
    with pytest.raises(
        ValueError, match=r"was kept of another plan than .* is, or of that before it changed; .* plan once more"
    ):
        read_kept(path)
    write_with_kept(plan, kept, path)
    assert flop_of(read_kept(path)) == 1e9


def test_one_without_the_other_is_named(tmp_path):
    plan, kept = pair()
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    with pytest.raises(
        ValueError, match=r"plan\.json\.kept\.json\.gz, which is kept for planning again, can't be read"
    ):
        read_kept(path)
    write_with_kept(plan, kept, path)
    path.rename(tmp_path / "moved.json")
    with pytest.raises(ValueError, match=r"was kept of .*plan\.json, which isn't there"):
        read_kept(path)
    with pytest.raises(ValueError, match=r"moved\.json\.kept\.json\.gz, which is kept .* can't be read"):
        read_kept(tmp_path / "moved.json")


def test_files_of_before_there_were_digests_are_read_where_no_other_is_bound(tmp_path, caplog):
    plan, kept = pair()
    path = tmp_path / "plan.json"
    write_with_kept(plan, kept, path)
    old = old_named(path, data_of(kept_path(path)))
    kept_path(path).unlink()
    assert kept_path(path) == old
    assert read_kept(path).differences(plan) == []
    assert "plan.kept.json.gz doesn't say which plan it was kept of, so it may be another one's than" in caplog.text
    # An old one isn't taken for a plan that something else is bound to.
    write_with_kept(plan, pair(3e9)[1], path)
    assert flop_of(read_kept(path)) == 3e9
    write_plan(dataclasses.replace(plan, notes=("by hand",)), path)
    with pytest.raises(ValueError, match="kept of another plan"):
        read_kept(path)


def test_where_nothing_was_made_the_plan_alone_is_written(tmp_path):
    plan, kept = pair()
    path = tmp_path / "plan.json"
    write_with_kept(plan, kept, path)
    written = write_with_kept(plan, None, path)
    assert (written.files, written.lacking) == ((path,), "")
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_where_there_is_too_much_to_keep_the_plan_is_written_all_the_same(tmp_path, monkeypatch):
    plan, kept = pair()
    path = tmp_path / "plan.json"
    write_with_kept(plan, kept, path)
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "0.001")
    written = write_with_kept(dataclasses.replace(plan, notes=("new",)), kept, path)
    assert "nothing is kept for planning again: the data take" in written.lacking
    assert "set ALPA_DEJAVU_FILE_MIB to" in written.lacking
    monkeypatch.delenv("ALPA_DEJAVU_FILE_MIB")
    assert read_plan(path).notes == ("new",)
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


class CrashError(BaseException):
    """The process ends: nothing cleans up after it."""


def crashing(monkeypatch, at):
    """Ends the process at the n-th replacement of a file."""
    count, replace = itertools.count(1), os.replace

    def replaced(*args):
        if next(count) == at:
            raise CrashError
        replace(*args)

    monkeypatch.setattr(os, "replace", replaced)


def crashed(path, plan, kept, at):
    """Writes a pair, and crashes at the n-th replacement; whether it came so far."""
    with pytest.MonkeyPatch.context() as patched:
        crashing(patched, at)
        try:
            write_with_kept(plan, kept, path)
        except CrashError:
            return True
    return False


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("second", [1, 2, 3, 4, 5])
def test_a_crash_leaves_the_old_pair_or_the_new_one(tmp_path, first, second):
    """Of three writers, two of which end at any step."""
    path = tmp_path / "plan.json"
    pairs = [pair(flop, batch) for flop, batch in ((1.0, 32), (2.0, 64), (3.0, 128), (4.0, 256))]
    write_with_kept(*pairs[0], path)
    assert crashed(path, *pairs[1], first)
    for n, at in ((2, second), (3, 0)):
        plan, kept = read_plan(path), read_kept(path)
        assert (plan.batch, flop_of(kept)) in [(each.batch, flop_of(its)) for each, its in pairs[:n]]
        assert kept.differences(plan) == []
        crashed(path, *pairs[n], at)
    assert (read_plan(path).batch, flop_of(read_kept(path))) == (256, 4.0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plan.json", "plan.json.kept.json.gz"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_crash_leaves_an_old_pair_of_before_there_were_digests(tmp_path, at):
    path = tmp_path / "plan.json"
    plan, kept = pair()
    write_with_kept(plan, kept, path)
    old_named(path, data_of(kept_path(path)))
    kept_path(path).unlink()
    crashed(path, *pair(2e9, batch=64), at)
    assert (read_plan(path).batch, flop_of(read_kept(path))) == ((32, 1e9) if at < 3 else (64, 2e9))


def test_what_is_kept_of_another_plan_is_refused(tmp_path):
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    write_with_kept(*pair(), path)
    write_with_kept(*pair(2e9, batch=64), other)
    kept_path(path).write_bytes(kept_path(other).read_bytes())
    with pytest.raises(
        ValueError, match=r"plan\.json\.kept\.json\.gz was kept of another plan than .*plan\.json is, or"
    ):
        read_kept(path)


def test_nothing_is_kept_beside_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no regular file, so nothing is kept beside it"):
        read_kept(tmp_path / "pipe")
    written = write_with_kept(*pair(), "/dev/null")
    assert [str(file) for file in written.files] == ["/dev/null"]


def test_hosts_that_the_kept_cluster_has_not_are_another_plan_s():
    plan, kept = pair()
    there = summary_of(CLUSTER)
    assert kept.differences(dataclasses.replace(plan, hardware=there)) == []
    host = dataclasses.replace(there.hosts[0], name="elsewhere", num_devices=8)
    (hosts, hardware) = kept.differences(dataclasses.replace(plan, hardware=dataclasses.replace(there, hosts=(host,))))
    assert hosts == "hosts is 'host-0', not 'elsewhere'"
    assert hardware.startswith("hardware is '1 host of 4 ")


def test_reduction_servers_are_kept_with_their_cluster(tmp_path):
    plan, kept = pair()
    servers = (ReductionServer("s", 1e9), ReductionServer("t", 2e9))
    kept = dataclasses.replace(kept, cluster=dataclasses.replace(kept.cluster, reduction_servers=servers))
    write_with_kept(plan, kept, tmp_path / "plan.json")
    assert read_kept(tmp_path / "plan.json").cluster == kept.cluster


@pytest.mark.parametrize("kind", ["power_of_two", "all"])
def test_which_submeshes_were_looked_at_is_kept(kind):
    rules = SpaceRules(kind, remat=("none",), zero=(0,))
    task = dataclasses.replace(task_of(chain(4), example_cluster(4), 8, Run(4)), space=rules)
    assert Kept.of(best_plan(task)).rules.submeshes == kind
