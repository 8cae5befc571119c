"""Machine files: units, and what is wrong with a file, named by key and line."""

import copy
import json
import socket
import threading

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import known_machines, named_cluster
from alpa_dejavu.clusters.figures import UNITS
from alpa_dejavu.clusters.gpus import gpu_of, known_gpus
from alpa_dejavu.clusters.machine_file import FOLDER

RIGHT = json.loads((FOLDER / "p3.8xlarge.json").read_text())
GONE = object()
NVME = {
    "num_bytes": {"value": 1, "unit": "TB", "source": "made up"},
    "read_bytes_per_s": {"value": 3, "unit": "GB/s", "source": "made up"},
}


def written(tmp_path, *changes):
    """The file p3.8xlarge.json with changes: (path, value) each."""
    data = copy.deepcopy(RIGHT)
    for path, value in changes:
        place = data
        for step in path[:-1]:
            place = place[step]
        if value is GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data, indent=2))
    return file


def line_with(file, text):
    (line,) = [n for n, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    return line


@pytest.mark.parametrize(
    ("path", "value", "marker", "said"),
    [
        (["devices"], 4, '"devices":', "devices is an unknown key; did you mean 'device'"),
        (["device", "memory"], 1, '"memory":', "device.memory is an unknown key"),
        (["device", "memory_bytes", "unit"], GONE, '"memory_bytes":', "device.memory_bytes lacks the key 'unit'"),
        (["within", "bytes_per_s"], 1e9, '"bytes_per_s": 1000000000.0', 'but must be an object such as {"value": 1'),
        (["within", "bytes_per_s", "unit"], "GB", '"unit": "GB",', "must be one of the units bytes/s"),
        (["between", "bytes_per_s", "value"], -1, '"value": -1', "between.bytes_per_s.value is -1, but must be"),
        (["between", "latency_s", "value"], -2, '"value": -2', "between.latency_s.value is -2"),
        (["device", "flop_per_s", "float32"], GONE, '"flop_per_s":', "device.flop_per_s lacks the key 'float32'"),
        (["device", "kernel_s", "source"], "", '"source": ""', "device.kernel_s.source is"),
        (["devices_per_host"], [4, 2], '"devices_per_host"', "devices_per_host is [4, 2], an asymmetric shape"),
        (["devices_per_host"], 0, '"devices_per_host"', "devices_per_host is 0, but must be"),
        (["devices_per_host"], 2.5, '"devices_per_host"', "devices_per_host is 2.5, but must be"),
        (["version"], 7, '"version"', "version is 7, but must be 1"),
        (["memory_margin"], {"value": 5, "unit": "kB", "source": "x"}, '"kB"', "must be one of the units %, 1"),
        (["memory_margin"], {"value": -5, "unit": "%", "source": "x"}, '"value": -5', "memory_margin.value is -5, but"),
        (["memory_margin"], {"value": 100, "unit": "%", "source": "x"}, '"memory_margin"', "is 1 of the memory, but"),
        (["memory_margin"], 0.05, '"memory_margin"', 'but must be an object such as {"value": 5'),
        (["host_memory", "shared_bytes_per_s"], GONE, '"host_memory"', "lacks the key 'shared_bytes_per_s'"),
        (["host_memory"], 5, '"host_memory"', "must be an object with num_bytes, bytes_per_s, device_bytes_per_s"),
        (["host_memory", "nvme"], NVME, '"nvme"', "host_memory.nvme lacks the key 'write_bytes_per_s'; "),
        (["between"], GONE, "{\n", "the file lacks the key 'between'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, path, value, marker, said):
    file = written(tmp_path, (path, value))
    with pytest.raises(ValueError, match=r"mine\.json, line") as caught:
        named_cluster(str(file), 1)
    assert said in str(caught.value)
    line = 1 if marker == "{\n" else line_with(file, marker)
    assert f"mine.json, line {line}:" in str(caught.value)
    assert "machine-1.json" in str(caught.value)


def test_a_right_file_of_ones_own_is_taken(tmp_path):
    file = written(tmp_path, (["name"], "mine"), (["devices_per_host"], [4, 4]))
    cluster = named_cluster(str(file), 2)
    assert cluster.name == "2 x mine"
    assert cluster.num_devices == 8
    assert [host.memory_margin for host in cluster.hosts] == [None, None]
    with pytest.raises(ValueError, match="describes 2 hosts, but 3 are asked for"):
        named_cluster(str(file), 3)


def test_units_are_turned_into_si(tmp_path):
    file = written(
        tmp_path,
        (["between", "bytes_per_s"], {"value": 8, "unit": "Gbit/s", "source": "x"}),
        (["device", "memory_bytes"], {"value": 2, "unit": "GiB", "source": "x"}),
        (["device", "kernel_s"], {"value": 3, "unit": "us", "source": "x"}),
        (["memory_margin"], {"value": 8, "unit": "%", "source": "x"}),
    )
    cluster = named_cluster(str(file), 2)
    assert cluster.links[0][1].bytes_per_s == pytest.approx(1e9)
    assert cluster.hosts[0].device.memory_bytes == 2**31
    assert cluster.hosts[0].device.kernel_s == pytest.approx(3e-6)
    assert cluster.hosts[0].device.rate("float16") == 114e12
    assert cluster.hosts[0].memory_margin == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("name", "near"), [("p3.16xlrge", "p3.16xlarge"), ("dgx-a10", "dgx-a100"), ("local_cpu", "local-cpu")]
)
def test_wrong_names_list_the_near_ones(name, near):
    with pytest.raises(ValueError, match=rf"no machine '{name}'; did you mean .*'{near}'"):
        named_cluster(name)
    with pytest.raises(ValueError, match="no machine 'quux'; `alpa-dejavu machines` lists all that are known, or give"):
        named_cluster("quux")


def test_hosts_and_devices_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="hosts is 0, but must be at least 1"):
        named_cluster("p3.8xlarge", 0)
    with pytest.raises(ValueError, match=r"has 4 devices, but 8"):
        named_cluster("p3.8xlarge", 1, 8)


@pytest.mark.parametrize("name", [name for name in known_machines() if name != "local-cpu"])
def test_figures_are_of_the_order_of_accelerators(name):
    """A slip in a unit is a factor of 8 or 1000: no machine is that far off all data sheets, nor off its own GPU's."""
    cluster = named_cluster(name, 2)
    device, within, between = cluster.hosts[0].device, cluster.links[0][0], cluster.links[0][1]
    sheets = [gpu_of(gpu).device() for gpu in known_gpus()]
    own = [sheet for sheet in sheets if sheet.name == device.name]
    for figure in (
        lambda kind: kind.memory_bytes,
        lambda kind: kind.memory_bytes_per_s,
        lambda kind: kind.rate("float32"),
        lambda kind: kind.rate("float16"),
    ):
        figures = [figure(sheet) for sheet in own or sheets]
        assert min(figures) / 2 < figure(device) < 2 * max(figures)
    assert device.rate("float32") <= device.rate("float16")
    assert device.memory_bytes_per_s > max(within.bytes_per_s, between.bytes_per_s)
    assert min(within.bytes_per_s, between.bytes_per_s) > 1e9
    assert 1e-6 < device.kernel_s < within.latency_s < between.latency_s < 1e-3


@pytest.mark.alpa
def test_a_cluster_that_is_dead_is_not_waited_for(monkeypatch):
    import ray

    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    with pytest.raises(RuntimeError, match=rf"RAY_ADDRESS is '{address}', but no cluster answers there \(.*\); start"):
        connected_cluster()


@pytest.mark.alpa
def test_what_listens_in_place_of_a_cluster_is_not_waited_for(monkeypatch):
    import ray

    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    def answer():
        with server.accept()[0] as line:
            line.recv(64)
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would try for minutes"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RuntimeError, match=r"no cluster answers there \(what listens there isn't Ray\)"):
            connected_cluster()
        thread.join()


@pytest.mark.alpa
def test_the_connected_cluster_is_the_one_that_alpa_sees(monkeypatch):
    import alpa
    from alpa import device_mesh
    from alpa.global_env import global_config

    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    info = [{"NodeManagerAddress": "10.0.0.1", "Resources": {"accelerator_type:V100": 1.0}}] * 2
    mesh = device_mesh.VirtualPhysicalMesh([0, 1], info, 8)
    monkeypatch.setattr(global_config, "backend", "gpu")
    monkeypatch.setattr(alpa, "init", lambda cluster: None)
    monkeypatch.setattr(device_mesh, "get_global_virtual_physical_mesh", lambda: mesh)
    assert connected_cluster().name == "2 x p3.16xlarge"

    def nobody(cluster):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(alpa, "init", nobody)
    with pytest.raises(RuntimeError, match=r"no Ray cluster to connect to .*ray start --head"):
        connected_cluster()

    def busy(cluster):
        raise RuntimeError("the nodes have [0, 0] free devices")

    monkeypatch.setattr(alpa, "init", busy)
    asked = ["plan", "--model", "gpt-125m", "--cluster", "ray", "--batch", "8"]
    result = CliRunner().invoke(main, asked)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: the Ray cluster can't be used: the nodes have [0, 0] free devices; or name a machine in its place\n"
    )


def test_every_unit_of_the_schema_is_known():
    schema = json.loads((FOLDER.parent / "schemas" / "machine-1.json").read_text())
    units = [figure["properties"].get("unit", {}) for figure in schema["$defs"].values()]
    assert {name for unit in units for name in unit.get("enum", [unit.get("const")])} - {None} == set(UNITS)


@pytest.mark.parametrize("name", known_gpus())
def test_sheets_are_of_the_order_of_gpus(name):
    """The least of these are of a P4, and the greatest are what a sheet of the next years may have."""
    gpu = gpu_of(name)
    device = gpu.device()
    assert 5 * 2**30 < device.memory_bytes < 2**40
    assert 2e12 < device.rate("float32") <= device.rate("float16") < 2e16
    assert gpu.vector_flop_per_s <= device.rate("float32")
    assert 1e11 < device.memory_bytes_per_s < 4e13
    assert device.memory_bytes_per_s > gpu.link_bytes_per_s > 1e9
    assert 1e8 < gpu.clock_hz < 1e10
    assert 10 < gpu.num_sm < 1000
    assert 10 < gpu.power_w < 10_000
    assert 1e6 < gpu.l2_bytes < 1e9
