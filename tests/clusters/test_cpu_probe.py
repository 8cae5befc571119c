"""This machine's CPU: its figures from seconds by hand, the shares of its devices, and what is kept of it."""

import dataclasses
import json
import os
import threading

import pytest

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters import _cpu_figures, cpu_probe, named_cluster
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.problem import Device, StridedReads


@pytest.fixture
def made_up_core(monkeypatch):
    """What a core of this machine, which has two, is said to do, in place of a measurement."""
    seconds = iter([1e-3, 1e-3, 4e-4, 0.5, 2e-3, 1e-2, 4e-3, 2e-3, 1e-3, 1.0, 1e-4, 5e-4, 2e-3])
    monkeypatch.setattr(_cpu_figures, "core_seconds", lambda run, at_once=1: (run(), next(seconds))[1])
    core = _cpu_figures.measured_core(1e9)
    assert list(seconds) == [], "each of them is measured once"
    monkeypatch.setattr(cpu_probe, "_core", lambda: core)
    monkeypatch.setattr(cpu_probe, "usable_cores", lambda: 2)
    monkeypatch.setattr(cpu_probe, "machine_memory_bytes", lambda: 4e9)
    return core


def test_devices_of_this_machine_share_it(made_up_core):
    one, four = measured_cpu(1), measured_cpu(4)
    assert one.rate("float32") == 4 * four.rate("float32") == 2 * made_up_core.rate("float32")
    assert one.memory_bytes == 4 * four.memory_bytes == 4e9
    assert one.memory_bytes_per_s == 4 * four.memory_bytes_per_s == 2 * made_up_core.memory_bytes_per_s
    # One device has a core for itself, and four share two.
    assert (one.kernel_s, four.kernel_s) == (made_up_core.kernel_s, 2 * made_up_core.kernel_s)
    library_s = made_up_core.small_products.library_s
    assert (one.small_products.library_s, four.small_products.library_s) == (library_s, 2 * library_s)
    # Twenty thousand lookups in Python took two milliseconds.
    assert (one.dispatch_s, four.dispatch_s) == pytest.approx((4e-3, 8e-3))
    assert (one.step_s, four.step_s) == pytest.approx((16e-3, 32e-3))
    assert one.uncached_bytes_per_s == 4 * four.uncached_bytes_per_s == 2 * made_up_core.uncached_bytes_per_s


def test_a_cores_figures_are_operations_and_bytes_over_seconds(made_up_core):
    assert made_up_core.rate("float32") == 2 * 384**3 / 1e-3
    assert made_up_core.small_products.share == pytest.approx(128**3 / 384**3)
    # At the full rate a product of 272 squared would take 0.355 of the millisecond that one of 384 squared takes.
    assert made_up_core.small_products.library_s == pytest.approx(4e-4 - 1e-3 * (272 / 384) ** 3)
    assert made_up_core.memory_bytes_per_s == 2 * 2**24 / 2e-3
    assert made_up_core.kernel_s == 1e-2 / 128
    # Lines of columns of 1024 elements take 4 MiB where rows have 4 KiB, 512 KiB where they have 512 bytes, and only
    # their own 64 KiB where rows have an odd number of lines.
    far, cached, near = (1024 * columns * 4 / took_s for columns, took_s in ((1024, 4e-3), (128, 2e-3), (272, 1e-3)))
    assert made_up_core.strided == StridedReads(far, cached, 2.0**19, near)
    assert made_up_core.extreme_flop_per_s == 256 * 256 / 1e-4
    assert made_up_core.uncached_bytes_per_s == 2 * 2**20 / 5e-4
    # The gradient of a convolution of three by three, from 64 channels to 64 on eight by eight of four images.
    assert made_up_core.dilated_flop_per_s == 2.0 * (4 * 8 * 8 * 64) * 9 * 64


@pytest.fixture
def probed(tmp_path, monkeypatch):
    """How often this machine was measured whole, in processes whose measurements are made up."""
    measured = []
    core = Device("core", 1e9, {"float32": 1e10}, 1e9, 1e9, strided=StridedReads(1.0, 2.0, 3.0))

    def measure(memory_bytes):
        measured.append(dataclasses.replace(core, memory_bytes=memory_bytes))
        return measured[-1]

    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_probe, "measured_core", measure)
    monkeypatch.setattr(cpu_probe, "matching", lambda kept: True)
    cpu_probe._core.cache_clear()
    yield measured
    cpu_probe._core.cache_clear()


def in_another_process():
    cpu_probe._core.cache_clear()
    return cpu_probe.measured_cpu(2)


def test_what_is_measured_once_is_kept_for_other_processes(probed, tmp_path):
    first = measured_cpu(2)
    assert in_another_process() == first
    assert len(probed) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["this-machine.json"]


def test_another_speed_another_machine_and_a_broken_file_are_measured_anew(probed, tmp_path, monkeypatch, caplog):
    measured_cpu(2)
    monkeypatch.setattr(cpu_probe, "matching", lambda kept: False)
    in_another_process()
    monkeypatch.setattr(cpu_probe, "matching", lambda kept: True)
    file = tmp_path / "cache" / "this-machine.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "fingerprint": {**kept["fingerprint"], "cores": 999}}))
    in_another_process()
    assert len(probed) == 3
    assert "can't be read" not in caplog.text
    for text in ("{", json.dumps({**kept, "core": {"name": 3}}), json.dumps([1])):
        file.write_text(text)
        in_another_process()
        assert "can't be read" in caplog.text
        caplog.clear()
    assert len(probed) == 6
    in_another_process()
    assert len(probed) == 6


def test_a_cache_that_cannot_be_written_or_may_hold_nothing_is_done_without(probed, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "file" / "cache"))
    assert measured_cpu(1).rate("float32") > 0
    assert "can't be kept" in caplog.text
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("ALPA_DEJAVU_CACHE_MIB", "0")
    in_another_process()
    assert not (tmp_path / "none").exists()


def test_cores_that_this_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        cluster = named_cluster("local-cpu", devices_per_host=2)
    finally:
        os.sched_setaffinity(0, allowed)
    assert cluster.cores == 1
    assert cluster.hosts[0].device.memory_bytes_per_s == pytest.approx(cpu_probe._core().memory_bytes_per_s / 2)


def test_seconds_of_a_core_are_a_low_quantile_of_the_cpus_within_a_budget():
    wall_s, runs, took_s = 0.0, 0, iter([9.0, *(float(n) for n in range(100, 0, -1))])
    cpu_s = 0.0

    def run():
        nonlocal cpu_s, wall_s, runs
        runs, cpu_s, wall_s = runs + 1, cpu_s + next(took_s), wall_s + 0.005

    found = _cpu_figures.core_seconds(run, 1, lambda: cpu_s, lambda: wall_s)
    # One run compiles, and one tells how long a run is; of the others, which take 99 to 90 seconds in 50 milliseconds,
    # the second tenth's end counts.
    assert 10 <= runs - 2 <= 11
    assert found == pytest.approx(91.5, abs=1.5)

    def slow():
        nonlocal wall_s, runs
        runs, wall_s = runs + 1, wall_s + 1.0

    runs = 0
    assert _cpu_figures.core_seconds(slow, 1, lambda: 0.0, lambda: wall_s) == 1e-9
    assert runs == 7, "five at least, however long they take"


def test_seconds_that_threads_take_after_a_short_run_are_counted():
    wall_s, cpu_s, runs = 0.0, 0.0, 0

    def run():
        nonlocal wall_s, cpu_s, runs
        runs, wall_s = runs + 1, wall_s + 1e-3
        if runs % 5 == 0:  # of five runs together
            cpu_s += 5 * 2e-3

    assert _cpu_figures.core_seconds(run, 1, lambda: cpu_s, lambda: wall_s) == pytest.approx(2e-3)


def test_a_run_beside_others_has_the_cpus_seconds_of_one():
    together, waits = threading.Barrier(2, timeout=60), [0]
    runs = []

    def run():
        runs.append(threading.current_thread())
        if waits[0] >= 2:  # one run compiles, one tells how long it takes
            together.wait()
        waits[0] += 1

    wall_s = 0.0

    def wall():
        nonlocal wall_s
        wall_s += 1.0
        return wall_s

    cpu_s = iter(float(n) for n in range(1000))
    assert _cpu_figures.core_seconds(run, 2, lambda: next(cpu_s), wall) == 0.5, "two runs took a second"
    assert len(set(runs[2:])) == 2


def test_devices_wait_for_each_other_unless_each_computes_on_its_own_thread(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    assert cpu_probe.on_one_cpu() == {"cores": usable_cores(), "waiting": 0.2}
    flags = "--xla_cpu_multi_thread_eigen=false --xla_disable_hlo_passes=onednn-matmul-rewriter"
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert cpu_probe.on_one_cpu() == {"cores": usable_cores(), "waiting": 0.0}


def test_this_machine_is_measured():
    core = measured_cpu(1)
    assert min(core.rate("float32"), core.memory_bytes_per_s, core.kernel_s) > 0


def test_figures_are_those_of_the_compilers_flags(probed, monkeypatch):
    for flags, times in (("", 1), ("--xla_force_host_platform_device_count=4", 1), ("--xla_cpu_a=1", 2), ("", 3)):
        monkeypatch.setenv("XLA_FLAGS", flags)
        in_another_process()
        assert len(probed) == times


@pytest.mark.parametrize(
    ("products", "copies", "same"),
    [(1.0, 1.0, True), (1.2, 1.2, True), (1.5, 1.0, False), (0.6, 1.0, False), (1.0, 1.8, True), (1.0, 2.2, False)],
)
def test_a_machine_matches_figures_that_are_about_what_it_reaches_now(monkeypatch, products, copies, same):
    core = Device("core", 1e9, {"float32": 2 * 384**3 / 1e-3}, 1e9, 2.0 * 2**24 / 1e-3)
    seconds = iter([1e-3 * products, 1e-3 * copies])
    monkeypatch.setattr(_cpu_figures, "core_seconds", lambda run, at_once: next(seconds))
    assert _cpu_figures.matching(core) is same


def test_a_limit_on_cores_is_kept_to(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert usable_cores() == 1
