"""The machines and GPUs that are known by name: their figures against one another, and what is planned on them."""

import itertools
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import known_machines, named_cluster
from alpa_dejavu.clusters.gpus import PRECISIONS, data_sheet, gpu_of, known_gpus
from alpa_dejavu.clusters.host_classes import slow_inside
from alpa_dejavu.clusters.machine_file import read_machine
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.costs.communication import AlphaBeta, Group, Links
from alpa_dejavu.costs.communication._nccl import Nccl
from alpa_dejavu.planning import plan_model
from alpa_dejavu.problem import Cluster, Link

MACHINES = [name for name in known_machines() if name != "local-cpu"]
NAMED = """
p4de.24xlarge p5.48xlarge p5en.48xlarge p6-b200.48xlarge g5.48xlarge g6e.48xlarge a3-highgpu-8g a3-ultragpu-8g
a4-highgpu-8g nd-h100-v5 nd-mi300x-v5 dgx-h200 dgx-b200 gb200-nvl72 mi300x h800
p3.8xlarge p3.16xlarge p4d.24xlarge g4dn.12xlarge dgx-a100 dgx-h100
""".split()
HALF_FLOP = {
    "volta": 1024,
    "turing": 1024,
    "ampere": 2048,
    "ada": 1024,
    "hopper": 4096,
    "blackwell": 8192,
    "cdna3": 2048,
}
"""Operations of a multiprocessor's tensor cores in a clock cycle, dense, in half precision: by architecture papers."""
GEFORCE = {"RTX-2080-Ti": 512, "RTX-3090": 512, "A10G": 512}
"""Those of GPUs whose tensor cores are half as wide, or sum in single precision at half the rate."""
LANES = {
    "pascal": 128,
    "volta": 64,
    "turing": 64,
    "ampere": 64,
    "ada": 128,
    "hopper": 128,
    "blackwell": 128,
    "cdna3": 128,
}
OTHER_LANES = {"P100-PCIE-16GB": 64, "RTX-3090": 128, "A10G": 128}
"""Multiplications and additions of a multiprocessor in single precision in a clock cycle."""
LINKS = {  # so many links of so many GB/s, in one direction
    "V100-SXM2": (6, 25), "A100-SXM": (12, 25), "H100-SXM": (18, 25), "H200": (18, 25), "GH200": (18, 25),
    "H800": (8, 25), "B200": (18, 50), "GB200": (18, 50), "B300": (18, 50), "GB300": (18, 50), "MI300X": (7, 64),
}  # fmt: skip
LANES_OF_PCIE = {16e9: "3.0", 32e9: "4.0", 64e9: "5.0"}


def peaks(name):
    return {precision: figure["value"] for precision, figure in data_sheet(name)["flop_per_s"].items()}


def test_all_are_there():
    assert sorted(NAMED) == sorted(MACHINES)


@pytest.mark.parametrize("name", known_gpus())
def test_peaks_follow_from_multiprocessors_and_clocks(name):
    gpu = gpu_of(name)
    cycles = gpu.num_sm * gpu.clock_hz
    assert gpu.vector_flop_per_s == pytest.approx(2 * OTHER_LANES.get(name, LANES[gpu.generation]) * cycles, rel=0.1)
    if gpu.generation != "pascal":
        half = GEFORCE.get(name, HALF_FLOP[gpu.generation]) * cycles
        assert gpu.flop_per_s["float16"] == pytest.approx(half, rel=0.1)


@pytest.mark.parametrize("name", known_gpus())
def test_narrower_numbers_are_as_many_times_as_fast_as_they_are_in_data_sheets(name):
    rates, gpu = peaks(name), gpu_of(name)
    assert set(rates) <= set(PRECISIONS)
    if "bf16" in rates:
        assert rates["bf16"] == rates["fp16"] == pytest.approx(2 * rates["tf32"], rel=0.03)
    if "fp8" in rates:
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.03)
    if "fp4" in rates:
        assert rates["fp4"] == pytest.approx((3 if "B300" in name else 2) * rates["fp8"])
    assert ("fp8" in rates) == (gpu.generation in ("ada", "hopper", "blackwell", "cdna3"))
    assert ("fp4" in rates) == (gpu.generation == "blackwell")
    assert gpu.flop_per_s["float32"] == 1e12 * rates.get("tf32", rates["fp32"])
    assert gpu.vector_flop_per_s == 1e12 * rates["fp32"]


@pytest.mark.parametrize("name", known_gpus())
def test_links_and_memory_are_what_names_say(name):
    gpu = gpu_of(name)
    links = next((links for start, links in LINKS.items() if name.startswith(start)), None)
    if links is None:
        assert gpu.link_bytes_per_s in LANES_OF_PCIE
    else:
        assert gpu.link_bytes_per_s == 1e9 * links[0] * links[1]
    gigabytes = re.search(r"(\d+)GB", name)
    if gigabytes:
        assert 0.93 < gpu.memory_bytes / (int(gigabytes[1]) * 2**30) <= 1


@pytest.mark.parametrize("name", known_gpus())
def test_every_figure_of_a_sheet_has_its_source(name):
    sheet = data_sheet(name)
    rates = sheet.pop("flop_per_s")
    for figure in (*sheet.values(), *rates.values()):
        assert figure["value"] > 0
        assert len(figure["source"]) > len("paper"), "names of sources are spelled out"
    assert all("unit" in figure for key, figure in sheet.items() if key != "num_sm")
    assert any("https://" in figure["source"] for figure in rates.values())


@pytest.mark.parametrize("name", MACHINES)
def test_links_of_machines_are_those_of_their_gpus(name):
    cluster = named_cluster(name, 2)
    within, between, device = *cluster.links[0], cluster.hosts[0].device
    gpu, count = gpu_of(device.name), cluster.hosts[0].num_devices
    assert device.memory_bytes == pytest.approx(0.9 * gpu.memory_bytes)
    assert within.bytes_per_s <= gpu.link_bytes_per_s
    if not name.startswith(("p3.8", "g4dn")):
        assert within.bytes_per_s == gpu.link_bytes_per_s
    if between.device_bytes_per_s is not None:
        assert between.bytes_per_s <= count * between.device_bytes_per_s <= 2 * between.bytes_per_s
    assert not slow_inside(cluster)


@pytest.mark.parametrize(("name", "hosts"), [*itertools.product(MACHINES, (1, 2, 64))])
def test_every_machine_makes_clusters(name, hosts):
    cluster = named_cluster(name, hosts)
    assert cluster.num_devices == hosts * cluster.hosts[0].num_devices
    cluster.check_rates()
    sizes = [submesh.num_devices for submesh in submeshes(cluster)]
    assert max(sizes) == cluster.num_devices
    assert search_space(cluster, 8).submeshes


@pytest.mark.parametrize("name", MACHINES)
def test_a_model_is_planned_on_every_machine(name):
    plan = plan_model("gpt-1.3b", name, batch=64, micro_batches=8, runtime="megatron").plan
    host = named_cluster(name).hosts[0]
    assert sum(stage.submesh.num_devices for stage in plan.stages) == host.num_devices
    rate = host.num_devices * host.device.rate("bfloat16")
    flop = 6 * 1.3e9 * 64 * 1024
    assert flop / rate < plan.step_s < 30 * flop / rate
    assert all(stage.memory_bytes <= host.device.memory_bytes for stage in plan.stages)


def test_a_rack_of_72_is_divided_as_people_do():
    cluster = named_cluster("gb200-nvl72")
    assert [(s.num_hosts, s.devices_per_host) for s in submeshes(cluster)] == [
        (1, devices) for devices in (1, 2, 4, 8, 16, 18, 24, 36, 72)
    ]
    assert [(s.num_hosts, s.devices_per_host) for s in submeshes(named_cluster("gb200-nvl72", 3))][9:] == [
        (2, 72),
        (3, 72),
    ]
    space = search_space(cluster, 72)
    rows = zip(space.submeshes, space.configs, strict=True)
    shapes = {submesh.num_devices: {config.shape for config in row if config} for submesh, row in rows}
    assert {(72, 1), (18, 4), (9, 8), (1, 72)} <= shapes[72]
    assert all(rows * columns == devices for devices, of in shapes.items() for rows, columns in of)


@pytest.mark.parametrize(
    ("devices", "parts"),
    [
        (6, [1, 2, 3, 4, 6]), (8, [1, 2, 4, 8]), (12, [1, 2, 3, 4, 6, 8, 12]), (24, [1, 2, 3, 4, 6, 8, 12, 16, 24]),
        (32, [1, 2, 4, 8, 16, 32]), (36, [1, 2, 4, 8, 16, 18, 36]), (71, [1, 2, 4, 8, 16, 32, 64, 71]),
        (144, [1, 2, 4, 8, 16, 18, 24, 36, 48, 72, 144]),
    ],
)  # fmt: skip
def test_parts_of_hosts(devices, parts):
    host = named_cluster("dgx-b200").hosts[0]
    cluster = Cluster.uniform("parts", ["a"], host.device, devices, Link(1e-5, 9e11), Link(3e-5, 4e11))
    assert [submesh.devices_per_host for submesh in submeshes(cluster)] == parts


def test_one_stage_goes_over_a_whole_rack_where_the_batch_suits_it():
    plan = plan_model("gpt-1.3b", "gb200-nvl72", batch=144, micro_batches=1, runtime="megatron").plan
    assert [(stage.submesh.num_devices, stage.logical_mesh) for stage in plan.stages] == [(72, (72, 1))]


@pytest.mark.parametrize("model", [AlphaBeta(), Links(), Nccl()])
def test_so_many_devices_as_send_have_so_many_cards(model):
    """A DGX H200 has a card of 50 GB/s for each GPU: eight send eight times as fast, and hosts are no faster."""
    cluster = named_cluster("dgx-h200", 2)
    latency_s = cluster.links[0][1].latency_s
    for devices, rate in ((1, 50e9), (4, 200e9), (8, 400e9)):
        group = Group(cluster, (0,) * devices + (1,) * devices)
        assert float(model.seconds("send", 1e9, group)) == pytest.approx(latency_s + 1e9 / rate)
    two = Group(cluster, (0, 1), concurrent=2)
    assert float(model.seconds("send", 1e9, two)) == pytest.approx(latency_s + 1e9 / 50e9), "each pair has its own card"
    many = Group(cluster, (0, 1), concurrent=16)
    assert float(model.seconds("send", 1e9, many)) == pytest.approx(latency_s + 16e9 / 400e9)


def test_two_gpus_share_a_card_of_p4de():
    """Four cards of 12.5 GB/s: an all-reduce from one GPU of each host has one, one from all GPUs has four."""
    cluster = named_cluster("p4de.24xlarge", 2)

    def seconds(*hosts):
        return float(Nccl().seconds("all_reduce", 1e10, Group(cluster, hosts)))

    alone, half, every = (seconds(*(0,) * n, *(1,) * n) for n in (1, 4, 8))
    assert alone > 2.9 * half
    assert half == pytest.approx(every, rel=0.3)


def test_eight_gpus_that_are_all_joined_exchange_over_all_of_their_links():
    """Each MI300X has a link to each of the other seven, a V100 has none to three of them."""
    mi300x, h100 = (Group(named_cluster(name), (0,) * 8) for name in ("mi300x", "dgx-h100"))
    seconds = [float(Nccl().seconds("all_to_all", 1e9, group)) for group in (mi300x, h100)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.3)


def shown(*arguments):
    result = CliRunner().invoke(main, ["machines", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_machines_are_listed_and_shown_with_sources():
    listed = {line.split()[0]: line for line in shown("--wide").splitlines() if line}
    assert set(MACHINES) <= set(listed)
    assert all(
        text in listed["p5.48xlarge"] for text in ("H100-SXM-80GB", "989 TFLOP/s", "450 GB/s", "400 GB/s", "55.04")
    )
    one = shown("p5en.48xlarge")
    assert all(text in one for text in ("63.3 USD/hour", "3.2 Tbit/s", "H200-SXM-141GB, Hopper", "1979 TFLOP/s"))
    for text in ("https://aws.amazon.com/ec2/instance-types/p5/", "https://www.nvidia.com/en-us/data-center/h200/"):
        assert text in one
    assert "bf16, fp8, fp4, those of float32" in shown("B200-SXM-180GB")
    assert "float16" in shown("p3.16xlarge"), "figures of its own, of which one was measured"
    assert "as many as this machine has cores" in shown("local-cpu")


@pytest.mark.parametrize(("name", "near"), [("p5.48xlrge", "p5.48xlarge"), ("dgxb200", "dgx-b200"), ("A10", "A10G")])
def test_an_unknown_machine_is_one_line_with_near_names(name, near):
    result = CliRunner().invoke(main, ["machines", name])
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert line.startswith(f"Error: name is '{name}', but must be that of a known machine or GPU; did you mean")
    assert f"'{near}'" in line
    planned = CliRunner().invoke(main, ["plan", "--model", "gpt-125m", "--batch", "8", "--cluster", name])
    assert (planned.exit_code, planned.stdout) == (1, "")
    assert planned.stderr.startswith(f"Error: there is no machine '{name}'")
    remedy = "`alpa-dejavu machines` lists all that are known, or give the path of a JSON or YAML file\n"
    assert planned.stderr.endswith(remedy)
    assert planned.stderr.count("\n") == 1


def test_a_gpu_stands_for_a_device_in_a_file_of_ones_own(tmp_path):
    import json

    data = read_machine("p5.48xlarge")
    device = data.pop("device")
    file = tmp_path / "mine.json"

    def cluster(**changed):
        file.write_text(json.dumps({key: value for key, value in {**data, **changed}.items() if value != "gone"}))
        return named_cluster(str(file), 2)

    assert cluster(name="mine", gpu="B200-SXM-180GB").hosts[0].device == named_cluster("dgx-b200").hosts[0].device
    assert cluster(gpu="gone", device=device).hosts[0].device == named_cluster("p5.48xlarge").hosts[0].device
    for changed, wrong in (
        ({"gpu": "B200-SXM-80GB"}, r"line 1: gpu is 'B200-SXM-80GB'; did you mean .*, but must be one of"),
        ({"device": device}, "the file has both a device and a gpu, but must have one of them"),
        ({"gpu": "gone"}, "the file has neither a device nor a gpu, but must have one of them"),
    ):
        with pytest.raises(ValueError, match=wrong):
            cluster(**changed)
