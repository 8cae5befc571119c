"""Alpa's profiling database read without running it, converted to JSON, checked, and fitted."""

import collections
import dataclasses
import json
import math
import pathlib
import pickle
import re
import sys
import types

import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu.calibration import Calibration, read_calibration, write_calibration
from alpa_dejavu.calibration.alpa_pickle import read_alpa_database
from alpa_dejavu.calibration.database import converted, read_database
from alpa_dejavu.calibration.fit_database import fit_database, fit_products
from alpa_dejavu.cli.main import main
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.communication.learned import LearnedCommunication
from alpa_dejavu.problem import Cluster, Device, Link, Operator, Operators
from alpa_dejavu.report.calibration_page import database_page
from pages import page_data

GROUPS = ((0, 1, 2, 3),)
PAIRS = ((0, 1), (2, 3))


@pytest.fixture
def result_class(monkeypatch):
    """A stand-in for Alpa's class under its name."""

    class MeshProfilingResult:
        def __init__(self):
            for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "dot"):
                setattr(self, f"{name}_cost_dict", collections.defaultdict(list))
            self.available_memory_per_device = None
            self.conv_cost_dict = []
            self.op_cost_dict = []

    MeshProfilingResult.__module__, MeshProfilingResult.__qualname__ = "alpa.mesh_profiling", "MeshProfilingResult"
    module = types.ModuleType("alpa.mesh_profiling")
    module.MeshProfilingResult = MeshProfilingResult
    package = types.ModuleType("alpa")
    package.mesh_profiling = module
    monkeypatch.setitem(sys.modules, "alpa", package)
    monkeypatch.setitem(sys.modules, "alpa.mesh_profiling", module)
    return MeshProfilingResult


def good(result_class):
    result = result_class()
    sizes = [2**power for power in range(10, 20)]
    for groups in (GROUPS, PAIRS):
        for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
            rows = [(size, np.float64(1e-4 + size * 3e-9)) for size in sizes]
            getattr(result, f"{name}_cost_dict")[(groups, "f32")] = rows
    result.dot_cost_dict[((), "f16")] = [(0, 1e-5), (2 * 1024**3, np.float32(1e-3)), (16 * 1024**3, np.float64(7e-3))]
    result.available_memory_per_device = np.int64(15_000_000_000)
    return result


def write(path, data):
    path.write_bytes(pickle.dumps(data))
    return path


def database_of(tmp_path, result):
    """What a profiler measured on a mesh of four devices, read and converted."""
    path = write(tmp_path / "db.pkl", {("default", (1, 4)): result})
    return converted(read_alpa_database(path), path)


def test_a_good_database_is_converted_and_read_back(tmp_path, result_class):
    for protocol in (2, 3, 4, 5):
        path = tmp_path / "db.pkl"
        path.write_bytes(pickle.dumps({("default", (1, 4)): good(result_class)}, protocol=protocol))
        database = converted(read_alpa_database(path), path)
        (mesh,) = database["meshes"]
        assert (mesh["cluster"], mesh["mesh"], mesh["available_bytes_per_device"]) == ("default", [1, 4], 15e9)
        assert len(mesh["series"]) == 9
        first = mesh["series"][0]
        assert (first["name"], first["dtype"], first["groups"]) == ("all_gather", "f32", [[0, 1, 2, 3]])
        assert (first["num_bytes"][0], first["seconds"][0]) == (4096, pytest.approx(1e-4 + 1024 * 3e-9))
        assert mesh["series"][-1]["flop"] == [0, 2 * 1024**3, 16 * 1024**3]
    output = tmp_path / "db.json"
    result = CliRunner().invoke(main, ["calibration", "convert", str(path), "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert "is a pickle" in result.stderr
    again = read_database(output)
    assert again | {"meshes": []} == database | {"meshes": []}
    for one, other in zip(again["meshes"][0]["series"], mesh["series"], strict=True):
        assert one["seconds"] == pytest.approx(other["seconds"], rel=1e-8)
        assert one | {"seconds": []} == other | {"seconds": []}
    page = tmp_path / "database.html"
    shown = CliRunner().invoke(main, ["calibration", "show", str(output), "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "all_gather" in shown.stdout
    assert set(re.findall("<h2>(.*?)</h2>", page.read_text(encoding="utf-8"))) == {
        "all-gather", "all-reduce", "all-to-all", "reduce-scatter", "matrix products",
    }  # fmt: skip


def test_rows_that_cannot_be_right_are_apart_with_their_reason(tmp_path, result_class):
    result = good(result_class)
    times = [1e-4, 1.5e-4, 3e-4, math.nan, math.inf, -1.0, 6.5e-4, 2e-4]
    result.all_reduce_cost_dict[(GROUPS, "f16")] = [(2**n, time) for n, time in enumerate(times, 4)] + [(16, 1.1e-4)]
    listed = database_of(tmp_path, result)["meshes"][0]["series"]
    (series,) = [one for one in listed if one["dtype"] == "f16" and one["name"] == "all_reduce"]
    assert {row["num_bytes"]: row["reason"] for row in series["left_out"]} == {
        32.0: "a size that was there already",
        128.0: "exactly twice the time of half the size",
        256.0: "not finite",
        512.0: "not finite",
        1024.0: "not above zero",
        4096.0: "faster than a smaller size",
    }
    assert [row["seconds"] for row in series["left_out"] if row["num_bytes"] in (256, 512)] == [None, None]
    assert series["num_bytes"] == [32, 64, 2048]


class Evil:
    """Runs a command when it is unpickled by anything that trusts pickles."""

    def __init__(self, function, *arguments):
        self.given = function, arguments

    def __reduce__(self):
        return self.given


def refused(path, match):
    with pytest.raises(ValueError, match=match) as caught:
        read_alpa_database(path)
    assert str(path) in str(caught.value)


def test_code_in_a_pickle_is_not_run(tmp_path, result_class):
    import os

    trap = tmp_path / "trap"
    for function, name in ((os.system, "posix.system"), (eval, "builtins.eval"), (pickle.loads, "_pickle.loads")):
        evil = Evil(function, f"open({str(trap)!r}, 'w')" if function is eval else f"touch {trap}")
        if function is pickle.loads:
            evil = Evil(function, pickle.dumps(Evil(os.system, f"touch {trap}")))
        refused(write(tmp_path / "evil.pkl", evil), name)
        result = good(result_class)
        result.all_to_all_cost_dict[(GROUPS, "f32")].append((1, [{"deep": evil}]))
        refused(write(tmp_path / "nested.pkl", {("default", (1, 4)): result}), name)
        assert not trap.exists()
    output = tmp_path / "out.json"
    output.write_text("before", encoding="utf-8")
    done = CliRunner().invoke(main, ["calibration", "convert", str(tmp_path / "evil.pkl"), "--output", str(output)])
    assert done.exit_code == 1
    assert "_pickle.loads" in done.stderr
    assert output.read_text(encoding="utf-8") == "before"


def test_damaged_files_are_named(tmp_path, result_class):
    whole = pickle.dumps({("default", (1, 4)): good(result_class)})
    path = tmp_path / "cut.pkl"
    for length in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path, "too early|truncated|no profiling database")
    path.write_bytes(b"not a pickle at all")
    refused(path, "no profiling database")
    refused(tmp_path / "absent.pkl", "can't be read")
    refused(write(path, [1, 2]), "holds a list in place of results")


def doubled(times, first, put_together):
    """The codes of an object that holds one twice that holds one twice, and so on: a few bytes of each."""
    return first + b"q\x000" + times * (b"h\x00h\x00" + put_together + b"q\x000") + b"h\x00"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"\x80\x02K\x01r\x00\x00\x00\x08.", "holds a int in place of results", id="a number far up"),
        pytest.param(b"\x80\x02}" + doubled(50, b")", b"\x86") + b"Ns.", "again and again", id="a key of tuples"),
        pytest.param(b"\x80\x02}(" + doubled(50, b")", b"\x86") + b"Nu.", "again and again", id="keys of tuples"),
        pytest.param(b"\x80\x02(" + doubled(50, b")", b"\x86") + b"Nd.", "again and again", id="a dictionary of them"),
        pytest.param(b"\x80\x02}K\x01" + doubled(50, b")", b"\x86") + b"s.", "again and again", id="a value of tuples"),
        pytest.param(b"\x80\x02}" + b")" + b"\x85" * 1000 + b"Ns.", "more than 100 deep", id="deep tuples"),
        pytest.param(b"\x80\x02}q\x00K\x01h\x00s.", "more than 100 deep", id="in itself"),
        pytest.param(b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", "no profiling database has", id="bytes of any number"),
        pytest.param(b"\x80\x02c_codecs\nencode\n}b.", "attributes to what has none", id="a changed stand-in"),
        pytest.param(
            b"\x80\x02]X\x00\x00\x10\x00" + b"x" * 2**20 + b"q\x000(" + 50 * b"c_codecs\nencode\nh\x00\x85R" + b"e.",
            "again and again", id="text made into bytes",
        ),
        pytest.param(b"\x80\x02K\x01" + b"0" * 9 * 2**20, "larger than 8.00 MiB.*ALPA_DEJAVU_FILE_MIB", id="large"),
    ],
)  # fmt: skip
def test_a_few_bytes_that_stand_for_endless_work_are_refused(tmp_path, content, said):
    path = tmp_path / "db.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"db\.pkl .*{said}"):
        read_alpa_database(path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda r: r.all_reduce_cost_dict.update({(GROUPS, "f32"): [(1, "slow")]}), "row 0 is \\(1, 'slow'\\)"),
        (lambda r: r.all_reduce_cost_dict.update({(GROUPS, "f32"): [(-1, 1.0)]}), "the size in row 0 is -1"),
        (lambda r: r.all_reduce_cost_dict.update({(GROUPS, "f31"): []}), "there is no such dtype"),
        (lambda r: r.all_reduce_cost_dict.update({(((0, 9),), "f32"): []}), "groups are \\(\\(0, 9\\),\\)"),
        (lambda r: r.all_reduce_cost_dict.update({(((0,), (1, 2)), "f32"): []}), "but must be equally many"),
        (lambda r: setattr(r, "available_memory_per_device", -5), "available_memory_per_device is -5"),
        (lambda r: setattr(r, "dot_cost_dict", 7), "isn't by \\(groups, dtype\\)"),
    ],
)
def test_results_that_no_profiler_writes_are_named(tmp_path, result_class, spoil, said):
    result = good(result_class)
    spoil(result)
    path = pathlib.Path("db.pkl")
    with pytest.raises(ValueError, match=said):
        database_of(tmp_path, result)
    with pytest.raises(ValueError, match="is no \\(cluster"):
        converted({"default": read_alpa_database(tmp_path / "db.pkl")["default", (1, 4)]}, path)
    with pytest.raises(ValueError, match="has no meshes"):
        converted({}, path)


def _of_series(**changed):
    return lambda mesh: mesh["series"][0].update(changed)


def _row(column, n, value):
    def change(mesh):
        mesh["series"][0][column][n] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_row("seconds", 3, -1e-4), "seconds[3] is -0.0001, but must be a number above 0"),
        (_row("seconds", 3, None), "seconds[3] is null, but must be a number above 0"),
        (_row("seconds", 9, 1e-9), "row 9, 2.09715e+06 in 0.001 us, is faster than a smaller size"),
        (_row("num_bytes", 3, 16384), "row 3, 16384 in 124.6 us, is a size that was there already"),
        (lambda mesh: mesh["series"][0]["seconds"].pop(), "has 10 sizes and 9 seconds"),
        (lambda mesh: mesh["series"][0].pop("num_bytes"), "lacks 'num_bytes'"),
        (_of_series(groups=[[0, 4]]), "the groups are [[0, 4]], but must be equally many of 4 devices each"),
        (_of_series(groups=[]), "the groups are [], but must be"),
        (_of_series(dtype="f31"), "there is no such dtype (known are f16"),
        (lambda mesh: mesh["series"].append(mesh["series"][0]), "all_gather in f32 is there twice"),
        (lambda mesh: mesh["series"][-1].update(groups=[[0]]), "but a product has none"),
    ],
)
def test_what_a_converted_file_cannot_hold_is_named_with_its_line(tmp_path, result_class, change, said):
    output, data = tmp_path / "db.json", database_of(tmp_path, good(result_class))
    change(data["meshes"][0])
    output.write_text(json.dumps(data, indent=1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"db\.json, line \d+: .*alpa-dejavu calibration convert") as caught:
        read_database(output)
    assert said in str(caught.value)


@pytest.mark.parametrize("unit", [1e3, 1e6, 1e-3, 1e-6])
def test_times_in_another_unit_are_named_with_a_row(tmp_path, result_class, unit):
    rows = [(2**power, 1e-5 + 4 * 2**power * 1.5 / 1e9) for power in range(10, 24)]
    result = good(result_class)
    for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
        getattr(result, f"{name}_cost_dict").clear()
    result.all_reduce_cost_dict[(GROUPS, "f32")] = [(size, unit * seconds) for size, seconds in rows]
    database = database_of(tmp_path, result)
    device = Device("V100", 16e9, {"float32": 1e13}, 1e13, 9e11)
    cluster = Cluster.uniform("four", ["host"], device, 4, Link(1e-5, 1e9), Link(1e-4, 1e8))
    with pytest.raises(ValueError, match=r"db\.pkl: .* all_reduce of \d.* bytes among 4 .*to seconds") as caught:
        fit_database(database, cluster)
    assert "times what the links of the cluster need" in str(caught.value)


def test_a_converted_file_is_checked(tmp_path, result_class):
    output, data = tmp_path / "db.json", database_of(tmp_path, good(result_class))
    for change, said in (
        ({"version": 2}, "version is 2, but must be 1"),
        ({"units": "US"}, "units is"),
        ({"meshes": []}, "meshes is"),
        ({"meshes": data["meshes"] * 2}, "line 1: the mesh 1x4 of default is there twice; keep one"),
    ):
        output.write_text(json.dumps(data | change), encoding="utf-8")
        with pytest.raises(ValueError, match=said):
            read_database(output)


def test_collectives_are_fitted_to_a_database(tmp_path, result_class):
    database = database_of(tmp_path, good(result_class))
    device = Device("v", 1e9, {"float32": 1e12}, 1e11, 1e11)
    cluster = Cluster.uniform("four", ["a"], device, 4, Link(1e-5, 1e9), Link(1e-4, 1e8))
    within, across, fits = fit_database(database, cluster)
    assert across is None
    assert [(fit.part, fit.rows) for fit in fits] == [("collectives within hosts", 80)]
    seconds = LearnedCommunication(within).seconds("all_reduce", 2.0**18, Group(cluster, (0,) * 4))
    assert float(seconds) == pytest.approx(1e-4 + 2**16 * 3e-9, rel=0.2)
    small = Cluster.uniform("two", ["a"], device, 2, Link(1e-5, 1e9), Link(1e-4, 1e8))
    with pytest.raises(ValueError, match="is of hosts with \\[4\\] devices"):
        fit_database(database, small)


def test_products_are_fitted_to_a_database(tmp_path, result_class):
    result = good(result_class)
    flop = [2 * side**3 for side in (512, 1024, 2048, 3072, 4096, 6144, 8192)]
    # Half of the rate that is declared in f16, all of it in f32; the first one is a launch.
    result.dot_cost_dict[((), "f16")] = [(64, 1e-5), *((n, n / 2e12) for n in flop)]
    result.dot_cost_dict[((), "f32")] = [(64, 1e-5), *((n, n / 1e12) for n in flop)]
    database = database_of(tmp_path, result)
    device = Device("v", 1e9, {"float32": 1e12, "float16": 4e12}, 1e11, 1e13)
    curves, fits = fit_products(database, device)
    assert [(fit.part, fit.rows, fit.left_out) for fit in fits] == [
        ("products in float16", 7, "size"),
        ("products in float32", 7, "size"),
    ]
    assert all(fit.held_out["mape"] == pytest.approx(0, abs=1e-6) for fit in fits)
    found = Calibration("made-up", "a test", "2026-01-01", devices={"v": device}, products={"v": curves})
    found = dataclasses.replace(found, device_spread={"v": {"memory_bytes_per_s": 0.1}})
    side = 4096
    dots = Operators.of([
        Operator("dot", "dot_general", ((side, side),) * 2, ((side, side),), dtype, 2.0 * side**3, 1e6, 1e6)
        for dtype in ("float16", "float32")
    ])  # fmt: skip
    assert found.latency().predict(dots, device).mean_s == pytest.approx(
        [2 * side**3 / 2e12, 2 * side**3 / 1e12], rel=0.01
    )
    again = tmp_path / "calibration.json"
    write_calibration(found, again)
    kept = read_calibration(again).latency().predict(dots, device).mean_s
    assert kept == pytest.approx(found.latency().predict(dots, device).mean_s)


def test_pictures_of_a_database_say_how_far_its_fits_are_off(tmp_path, result_class):
    result = good(result_class)
    result.dot_cost_dict[((), "f16")] = [(2**power, 1e-6 + 2**power / 1e12) for power in range(20, 34)]
    result.all_reduce_cost_dict[(GROUPS, "f32")].insert(0, (0, 1e-4))
    found = database_of(tmp_path, result)
    page = database_page(found)
    sections = dict(re.findall(r"<h2>(.*?)</h2>\n<p>(.*?)</p>", page))
    assert sections["matrix products"].startswith("products in float16: ")
    assert "each size left out in turn" in sections["matrix products"]
    assert sections["all-reduce"].startswith("all collectives within hosts: ")
    assert "each group size left out in turn" in sections["all-reduce"]
    charts = dict(zip(re.findall("<h2>(.*?)</h2>", page), page_data(page)["charts"].values(), strict=True))
    names = {trace["name"] for trace in charts["all-reduce"]["data"]}
    assert {"fit, 1x4, 2 x 2, f32", "measured, 1x4, 2 x 2, f32"} <= names


def test_what_is_known_can_not_be_misused(tmp_path):
    # The table's own entries: called, made of other things, or with dotted names that lead elsewhere.
    refused(write(tmp_path / "object.pkl", np.array([Evil(print)], dtype=object)), "arrays of 'O8'")
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    for text in (b"cbuiltins\nlist\n(tR.", b"cnumpy\nndarray\n(tR.", dotted):
        path = tmp_path / "raw.pkl"
        path.write_bytes(text)
        refused(path, "is no profiling database")
    import fractions

    refused(write(tmp_path / "other.pkl", {1: fractions.Fraction(1, 2)}), "fractions.Fraction")


def test_rows_that_were_left_out_are_named_where_they_are_converted(tmp_path, result_class):
    result = good(result_class)
    result.all_reduce_cost_dict[(GROUPS, "f16")] = [(16, 1e-4), (32, math.nan), (64, -1.0), (128, math.nan)]
    path = write(tmp_path / "db.pkl", {("default", (1, 4)): result})
    done = CliRunner().invoke(main, ["calibration", "convert", str(path), "--output", str(tmp_path / "db.json")])
    assert done.exit_code == 0, done.output
    lines = " ".join(done.stdout.split())
    assert "2 left out, not finite (the first: all_reduce in f16 of 64 bytes on 1x4); measure again" in lines
    assert "1 left out, not above zero (the first: all_reduce in f16 of 128 bytes on 1x4, " in lines
