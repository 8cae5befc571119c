"""`alpa-dejavu machines`: the machine types and GPUs that are known by name, with the sources of their figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.table import new_table

if TYPE_CHECKING:
    from alpa_dejavu.problem import Host, Link

_HOSTS = 2
"""As many hosts have links between them."""
_WORDS = {"num_sm": "multiprocessors", "num_bytes": "size", "l2_bytes": "L2 cache"}


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu machines",
        "alpa-dejavu machines p5.48xlarge",
        "alpa-dejavu machines GB200-186GB",
    ),
    rests_on="Figures are from data sheets and clouds' pages, or estimates; NAME shows the source of each.",
)
@click.argument("name", required=False)
def machines(name: str | None) -> None:
    """Lists the known machines with their GPUs, rates and prices. With NAME, it lists all figures of one machine or GPU
    with their sources.

    `--cluster` takes each name, alone or with a number of hosts: `--cluster '4 x p5.48xlarge'`. It also takes the path
    of a file that describes a machine of your own, and so does NAME.
    """
    from alpa_dejavu._util.near_names import near
    from alpa_dejavu.clusters import known_machines
    from alpa_dejavu.clusters.gpus import known_gpus

    if name is None:
        _list()
    elif name in known_machines() or os.path.isfile(name):
        _show_machine(name)
    elif name in known_gpus():
        _show_gpu(name)
    else:
        hint = near(name, [*known_machines(), *known_gpus()]) or ";"
        raise click.UsageError(
            f"name is {name!r}, but must be that of a known machine or GPU{hint} leave it out to see all machines"
        )


def _list() -> None:
    from alpa_dejavu.clusters import known_machines, named_cluster
    from alpa_dejavu.clusters.machine_file import read_machine

    heads = ("GPUs", "memory", "bandwidth", "bf16", "fp8", "inside", "network", "its card", "USD/hour")
    table = new_table(("name", "GPU"), heads, leave=("its card", "bandwidth", "fp8", "USD/hour"))
    for name in known_machines():
        if read_machine(name)["device"] is not None:
            cluster = named_cluster(name, _HOSTS)
            table.add_row(name, *_row(cluster.hosts[0], *cluster.links[0]))
    to = console()
    to.print(table)
    to.print()
    to.fact("memory, bandwidth", "of one GPU; plans for Alpa use 0.9 of the memory")
    to.fact("bf16, fp8", "peak rates of dense products on one GPU; where it has no bf16, of float16")
    to.fact("inside", "rate from one GPU to the others of its host, in one direction")
    to.fact("network", "rate from all GPUs of a host to other hosts, in one direction")
    to.fact("its card", "rate of the network card that a GPU has for itself")
    to.fact("local-cpu", "is this machine's CPU, which is measured")


def _row(host: Host, within: Link, between: Link) -> Iterator[str]:
    from alpa_dejavu.clusters.gpus import gpu_of

    device, rates = host.device, host.device.flop_per_s
    gpu = gpu_of(device.name)
    yield device.name
    yield str(host.num_devices)
    yield units.size(device.memory_bytes if gpu is None else gpu.memory_bytes)
    yield units.byte_rate(device.memory_bytes_per_s)
    yield units.flop_rate(rates.get("bfloat16", device.rate("float16")))
    yield units.flop_rate(rates["float8"]) if "float8" in rates else ""
    yield units.byte_rate(within.bytes_per_s)
    yield units.byte_rate(between.bytes_per_s)
    yield "" if between.device_bytes_per_s is None else units.byte_rate(between.device_bytes_per_s)
    yield "" if host.price_per_hour is None else f"{host.price_per_hour:.2f}"


def _show_machine(name: str) -> None:
    from alpa_dejavu.clusters.machine_file import read_machine

    data = read_machine(name)
    table = _figures()
    price = data.get("price_per_hour")
    if price is not None:
        table.add_row("price", *_cells(price))
    for key, figures in (("inside", data["within"]), ("network", data["between"]), ("memory", data.get("host_memory"))):
        _add(table, key, figures or {})
    to = console()
    to.fact("machine", data["name"])
    to.fact("devices of a host", str(data["devices_per_host"] or "as many as this machine has cores"))
    to.print(table)
    to.print()
    device = data["device"]
    if device is None:
        return
    if "gpu" in data:
        _show_gpu(data["gpu"])
        return
    own = _figures()
    _add(own, "", {key: figure for key, figure in device.items() if key != "name"})
    to.fact("device", device["name"])
    to.print(own)


def _show_gpu(name: str) -> None:
    from alpa_dejavu.clusters.gpus import data_sheet, gpu_of

    sheet, gpu = data_sheet(name), gpu_of(name)
    assert gpu is not None, "a known GPU has a data sheet"
    peaks = sheet.pop("flop_per_s")
    table = _figures()
    for key, figure in sheet.items():
        table.add_row(_label(key), *_cells(figure))
    for precision, figure in peaks.items():
        table.add_row(precision, *_cells(figure))
    to = console()
    to.fact("GPU", f"{name}, {gpu.generation.capitalize()}")
    to.print(table)
    to.print()
    single = "tf32" if "tf32" in peaks else "fp32"
    used = [p for p in peaks if p not in ("tf32", "fp32")]
    to.fact("priced", f"products in {', '.join(used)}, those of float32 by {single}; fp32 is the rate of all else")


def _figures() -> Any:
    return new_table(("figure",), ("value",), ("source",))


def _add(table: Any, prefix: str, figures: Mapping[str, Any]) -> None:
    for key, figure in figures.items():
        label = f"{prefix} {_label(key)}".strip()
        if "value" in figure:
            table.add_row(label, *_cells(figure))
        else:
            _add(table, label, figure)


def _label(key: str) -> str:
    """Returns the name of a figure in words: its unit says what it is of."""
    words = _WORDS.get(key, key)
    for end in ("_per_hour", "_s", "_hz", "_w", "_bytes"):
        words = words.removesuffix(end)
    return words.replace("_bytes_per", " rate").replace("bytes_per", "rate").replace("_per", " rate").replace("_", " ")


def _cells(figure: Mapping[str, Any]) -> tuple[str, str]:
    return f"{units.number(figure['value'])} {figure.get('unit', '')}".strip(), str(figure["source"])
