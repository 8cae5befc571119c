"""The memory of hosts: measured figures are found again, kept, applied; and real measurements leave nothing behind."""

import dataclasses
import math
import os
import tempfile
from multiprocessing.shared_memory import SharedMemory

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.calibration import Calibration, _host_files, read_calibration, write_calibration
from alpa_dejavu.calibration._fit_host_memory import fit_host_memory, host_probes
from alpa_dejavu.calibration.bench import HOST_MEMORY, HostProbe, MeasurementError, ProbePlace
from alpa_dejavu.calibration.host_probes import copier, host_figures
from alpa_dejavu.calibration.measured_hosts import MeasuredHostMemory
from alpa_dejavu.calibration.measurements import Measurement
from alpa_dejavu.cli.main import main
from alpa_dejavu.problem import Device, HostMemory, Nvme
from measured_cluster import LINK, PRIOR, MadeUp, cluster_of, kept, measure, took_in_memory

KNOWN = HostMemory(3e11, 1e11, 2e10, 4e10, Nvme(2e12, 5e9, 4e9))


class MemoryAlone(MadeUp):
    """A bench on which nothing but the memory of hosts can be measured."""

    def run(self, probe):
        if isinstance(probe, HostProbe):
            return super().run(probe)
        raise MeasurementError("not now")


def test_figures_are_found_again(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK), MemoryAlone(noise=0.0)).host_memory["test"]
    assert found.num_bytes == pytest.approx(0.9e11)
    assert found.bytes_per_s == pytest.approx(2e10)
    assert found.device_bytes_per_s == pytest.approx(1e10)
    assert found.shared_bytes_per_s == pytest.approx(1.5e10)
    assert (found.read_bytes_per_s, found.write_bytes_per_s) == (pytest.approx(3e9), pytest.approx(1e9))
    assert found.free_bytes == pytest.approx(0.9e12)
    assert found.slowdown == pytest.approx(dict.fromkeys(("update", "copies", "reads", "writes"), 1.5))
    assert not found.stand_in


def test_what_differs_between_sizes_or_ways_is_the_spread():
    small, large = HostProbe("update", 1 << 20), HostProbe("update", 1 << 22)
    copies = HostProbe("copies", 1 << 20)
    found = fit_host_memory(
        {
            large: {"update_s": 7 * 2**22 / 1e9}, small: {"update_s": 7 * 2**20 / 2e9},
            copies: {"to_device_s": 2**20 / 1e9, "to_host_s": 2**20 / 4e9},
        },
        2, "", stand_in=False,
    )  # fmt: skip
    assert found.bytes_per_s == pytest.approx(1e9)
    assert found.spread["bytes_per_s"] == pytest.approx(math.log(2) / 2)
    assert found.device_bytes_per_s == pytest.approx(2e9)
    assert found.spread["device_bytes_per_s"] == pytest.approx(math.log(4) / 2)
    files = {
        HostProbe("files", num_bytes): {
            "write_s": num_bytes / rate, "read_s": num_bytes / 1e9, "write_beside_s": 1.0, "read_beside_s": 1.0,
            "free_bytes": 1e12,
        }
        for num_bytes, rate in ((1 << 22, 1e9), (1 << 20, 2e9))
    }  # fmt: skip
    drives = fit_host_memory(files, 2, "", stand_in=False)
    assert drives.write_bytes_per_s == pytest.approx(1e9)
    assert drives.spread["write_bytes_per_s"] == pytest.approx(math.log(2) / 2)
    assert drives.spread["read_bytes_per_s"] == 0.05
    # What all devices together have wasn't measured.
    assert found.shared_bytes_per_s is None
    assert found.applied_to(KNOWN).shared_bytes_per_s == KNOWN.shared_bytes_per_s


def test_it_is_kept_shown_and_taken(tmp_path):
    cluster, path = cluster_of(PRIOR, LINK), tmp_path / "c.json"
    found = measure(tmp_path, cluster, MemoryAlone())
    write_calibration(found, path)
    again = read_calibration(path)
    assert again.identity == found.identity
    memory = again.host_memory["test"]
    host = again.applied_to(cluster).hosts[0]
    assert host.memory == HostMemory(
        memory.num_bytes, memory.bytes_per_s, memory.device_bytes_per_s, memory.shared_bytes_per_s,
        Nvme(memory.free_bytes, memory.read_bytes_per_s, memory.write_bytes_per_s),
    )  # fmt: skip
    result = CliRunner().invoke(main, ["calibration", "show", str(path)])
    assert result.exit_code == 0, result.output
    for said in ("bandwidth, by Adam's update", "copies of all devices", "writes of a file", "times as long"):
        assert said in result.output


def test_parts_of_a_cpu_get_no_memory_and_that_is_said(tmp_path):
    cluster = cluster_of(dataclasses.replace(PRIOR, name="cpu"), LINK)
    found = measure(tmp_path, cluster, MemoryAlone())
    assert found.host_memory["cpu"].stand_in
    assert any("copies between two processes stood in" in said for said in found.missing)
    assert found.applied_to(cluster).hosts[0].memory is None
    path = tmp_path / "c.json"
    write_calibration(found, path)
    result = CliRunner().invoke(main, ["calibration", "show", str(path)])
    assert "(between processes)" in result.output


def test_drives_that_fail_are_named_and_nothing_else_is_lost(tmp_path):
    found = measure(tmp_path, cluster_of(PRIOR, LINK), MemoryAlone(failing=("files",)))
    # One that fails isn't tried again with another size.
    assert any("files of 268435456 bytes can't be measured: out of memory" in said for said in found.missing)
    memory = found.host_memory["test"]
    assert memory.read_bytes_per_s is None
    assert memory.bytes_per_s > 0
    assert memory.slowdown.keys() == {"update", "copies"}
    assert memory.applied_to(None).nvme is None


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"bytes_per_s": 0.0}, "bytes_per_s is 0.0, but must be a finite number above 0"),
        ({"spread": {"memory": 0.1}}, "the spread is 'memory', but must be one of 'bytes_per_s'"),
        ({"spread": {"bytes_per_s": -0.1}}, "the spread of bytes_per_s is -0.1"),
        ({"slowdown": {"update": 0.5}}, r"slowdown\['update'\] is 0.5, but must be finite and at least 1"),
        ({"slowdown": {"songs": 2.0}}, "the slowdown is 'songs'"),
    ],
)
def test_wrong_figures_are_named(figures, said):
    with pytest.raises(ValueError, match=said):
        MeasuredHostMemory(**figures)


@pytest.mark.parametrize("figures", [{"name": "songs"}, {"name": "files", "num_bytes": 0}])
def test_a_probe_that_is_none_is_refused(figures):
    with pytest.raises(ValueError, match="there is no probe of a host's memory"):
        HostProbe(**figures)


RATES = st.none() | st.floats(1.0, 1e15)


@settings(max_examples=50, deadline=None)
@given(st.builds(MeasuredHostMemory, RATES, RATES, RATES, RATES, RATES, RATES, RATES, st.just("/a"), st.booleans()))
def test_measured_memory_goes_through_a_file_and_never_makes_a_host_forget(tmp_path_factory, measured):
    device = Device("d", 1e9, {"float32": 1e9}, 1e9, 1e9)
    calibration = Calibration("c", "o", "2026-01-01", devices={"d": device}, host_memory={"d": measured})
    path = tmp_path_factory.mktemp("calibrations") / "c.json"
    write_calibration(calibration, path)
    assert read_calibration(path).identity == calibration.identity
    applied = measured.applied_to(KNOWN)
    assert (applied.num_bytes, applied.nvme.num_bytes) == (KNOWN.num_bytes, KNOWN.nvme.num_bytes)


@pytest.fixture
def disk(tmp_path):
    """A folder on a drive, for tests whose own may be kept in memory."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as there:
        yield there


def test_real_figures_are_finite_and_above_zero_and_nothing_is_left(disk, monkeypatch):
    monkeypatch.setattr("alpa_dejavu.calibration.host_probes._MEASURED_S", 0.01)
    monkeypatch.setattr("alpa_dejavu.calibration.host_probes._BESIDE_S", 0.01)
    monkeypatch.setattr("alpa_dejavu.calibration.host_probes.SharedMemory", shared := Recorded())
    probes = [
        HostProbe("memory"), HostProbe("update", 4000), HostProbe("copies", 5000), HostProbe("files", 5000, 1, disk),
        HostProbe("update beside copies", 4096),
    ]  # fmt: skip
    for probe in probes:
        found = host_figures(probe, None)
        assert set(found) == set(probe.names)
        assert all(math.isfinite(value) and value > 0 for value in found.values()), probe
    import jax

    assert min(host_figures(HostProbe("copies", 1 << 12), jax.devices("cpu")[0]).values()) > 0
    assert os.listdir(disk) == []
    for name in shared.names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)


class Recorded:
    """Makes shared memory, and knows its names."""

    def __init__(self):
        self.names = []

    def __call__(self, *args, **kwargs):
        made = SharedMemory(*args, **kwargs)
        self.names.append(made.name)
        return made


def test_folders_that_cannot_be_measured_are_named(disk, monkeypatch):
    with pytest.raises(MeasurementError, match="nowhere: No such file or directory; give a folder that can be written"):
        host_figures(HostProbe("files", 4096, folder=f"{disk}/nowhere"), None)
    with pytest.raises(MeasurementError, match="free, but needs"):
        host_figures(HostProbe("files", 1 << 60, folder=disk), None)
    monkeypatch.setattr(_host_files._Scratch, "write", full)
    with pytest.raises(MeasurementError, match="No space left on device; give a folder"):
        host_figures(HostProbe("files", 4096, folder=disk), None)
    assert os.listdir(disk) == []


def full(scratch):
    raise OSError(28, "No space left on device")


def _ends(connection, *arguments):
    """A process that ends before it has measured anything."""


@pytest.mark.parametrize("name", ["copies", "update"])
def test_a_process_that_ends_early_is_told(monkeypatch, name):
    monkeypatch.setattr("alpa_dejavu.calibration.host_probes._serve", _ends)
    with pytest.raises(MeasurementError, match=r"the process that measures ended early|Broken pipe|reset"):
        host_figures(HostProbe(name, 4096), None)


def found_in(probes):
    return {probe: took_in_memory(probe) for probe in probes}


@pytest.mark.parametrize("name", ["memory", "update", "copies", "files", "update beside copies"])
def test_what_was_not_measured_stays_as_it_was(name):
    probes = [probe for probe in host_probes(2, "") if probe.name != name]
    found = fit_host_memory(found_in(probes), 2, "", stand_in=False)
    applied = found.applied_to(KNOWN)
    assert (applied.bytes_per_s == KNOWN.bytes_per_s) == (name == "update")
    assert (applied.device_bytes_per_s == KNOWN.device_bytes_per_s) == (name == "copies")
    assert (applied.shared_bytes_per_s == KNOWN.shared_bytes_per_s) == (name == "copies")
    assert (applied.nvme == KNOWN.nvme) == (name == "files")
    # Without any figure from before, memory isn't known where a rate is missing.
    assert (found.applied_to(None) is None) == (name in ("memory", "update", "copies"))
    assert (found.slowdown.keys() >= {"update"}) == (name in ("memory", "files"))


def test_of_one_device_all_are_that_one():
    found = fit_host_memory(found_in(host_probes(1, "")), 1, "", stand_in=False)
    assert found.shared_bytes_per_s == found.device_bytes_per_s == pytest.approx(1e10)
    assert fit_host_memory({}, 1, "", stand_in=False) is None


def test_files_of_another_folder_do_not_count():
    one, other = ({probe for probe in host_probes(1, folder) if probe.name == "files"} for folder in ("/a", "/b"))
    assert one != other
    found = fit_host_memory({**found_in(one), **found_in(host_probes(1, "/b"))}, 1, "/b", stand_in=False)
    assert found.folder == "/b"
    assert fit_host_memory(found_in(one), 1, "/b", stand_in=False).read_bytes_per_s is None


def test_what_time_was_too_short_for_is_said_and_measured_later(tmp_path):
    cluster, bench = cluster_of(PRIOR, LINK, devices=1), MemoryAlone()
    first = measure(tmp_path, cluster, bench, budget_s=3.0)
    (said,) = (one for one in first.missing if "update beside copies" in one)
    assert "the time was over; go on with --resume" in said
    again = MemoryAlone()
    found = measure(tmp_path, cluster, again, resume=True)
    assert not set(bench.ran) & set(again.ran)
    assert found.host_memory["test"].slowdown.keys() == {"update", "copies", "reads", "writes"}


def test_memory_of_hosts_whose_devices_are_unknown_is_refused():
    with pytest.raises(ValueError, match="host_memory is of hosts with 'x', but there are no figures of such devices"):
        Calibration("c", "o", "2026-01-01", host_memory={"x": MeasuredHostMemory()})


def test_measurements_are_kept_and_wrong_ones_named(tmp_path):
    cluster = cluster_of(PRIOR, LINK)
    store = kept(tmp_path, cluster)
    place, probe = ProbePlace(HOST_MEMORY, "test"), HostProbe("files", 4096, folder="/scratch")
    store.add(Measurement(place, probe, took_in_memory(probe)))
    assert kept(tmp_path, cluster, resume=True).at(place) == {probe: took_in_memory(probe)}
    store.path.write_text(store.path.read_text().replace('"read_s"', '"sung_s"'))
    with pytest.raises(ValueError, match="must have free_bytes, read_beside_s, read_s, write_beside_s, write_s"):
        kept(tmp_path, cluster, resume=True)


def test_nothing_is_left_of_copies_that_fail():
    with pytest.raises(ZeroDivisionError), copier(4096, None) as begin:
        print(1 / (0 * begin(0.0)()[0][0]))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no folder is kept in memory here")
def test_a_folder_in_memory_is_no_drive():
    with pytest.raises(MeasurementError, match=r"/dev/shm is kept in memory \(tmpfs\); give a folder on a drive"):
        host_figures(HostProbe("files", 4096, folder="/dev/shm"), None)


def test_a_file_system_without_direct_access_forgets_what_was_written(disk, monkeypatch):
    monkeypatch.setattr(_host_files, "_direct", lambda number: False)
    found = host_figures(HostProbe("files", 10_000, folder=disk), None)
    assert min(found.values()) > 0
