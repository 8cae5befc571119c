"""Reading a machine file: its figures in SI units, checked.

A file has `version` 1, `name`, `accelerator_type` (Ray's word for the device, or null), `devices_per_host`, perhaps a
`price_per_hour` and a `memory_margin` (the share of the memory that plans leave free), and the objects `device`,
`within`, `between`, and perhaps `host_memory`, whose figures are {"value": number, "unit": text, "source": text}. The
key names what a figure is in SI units; its unit may be a multiple, as data sheets have them ("GiB", "Gbit/s",
"TFLOP/s"). In place of `device` it may have `gpu`, the name of a GPU whose data sheet is known (`gpus`).
`schemas/machine-1.json` has every key and unit.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alpa_dejavu._util.data_file import is_yaml, read_checked_file
from alpa_dejavu._util.near_names import near
from alpa_dejavu.clusters.figures import of_figures, si
from alpa_dejavu.clusters.gpus import STARTS, device_figures, known_gpus
from alpa_dejavu.problem import Device, HostMemory

if TYPE_CHECKING:
    from alpa_dejavu.clusters.formats import MachineData

FOLDER = pathlib.Path(__file__).parent
REMEDY = f"the files in {FOLDER} are right ones, and schemas/machine-1.json says what each key may be"


def known_machines() -> list[str]:
    """Returns the names of all machine types that come with the package ("local-cpu" has figures of links only: its
    devices are measured).

    >>> "p3.16xlarge" in known_machines()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_machine(name: str) -> MachineData:
    """Reads the figures of a machine type from its file: one that comes with the package, or the user's.

    Raises:
        ValueError: there is no such machine or file, or the file is wrong; says what, and in which line.
    """
    if name in known_machines():
        # These are checked when they change, by a test: the checker takes longer to import than all else here.
        packaged: MachineData = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        return _with_device(packaged)
    if not os.path.isfile(name):
        path = pathlib.Path(name)
        if path.suffix == ".json" or is_yaml(path) or os.sep in name:
            raise ValueError(
                f"there is no file {name!r}; give the path of a JSON or YAML file, or the name of a machine type"
            )
        raise ValueError(
            f"there is no machine {name!r}{near(name, known_machines()) or ';'} `alpa-dejavu machines` lists all that "
            "are known, or give the path of a JSON or YAML file"
        )
    from alpa_dejavu.clusters.formats import MachineData

    file = read_checked_file(pathlib.Path(name), MachineData, REMEDY)
    data = file.data
    shape = data["devices_per_host"]
    if isinstance(shape, list) and len(set(shape)) > 1:
        wrong = f"devices_per_host is {shape}, an asymmetric shape, but Alpa needs equally many devices on every host"
        raise file.problem(("devices_per_host",), wrong)
    margin = figure_of(data, "memory_margin")
    if margin is not None and margin >= 1:
        wrong = f"memory_margin is {margin:g} of the memory, but must be below 1"
        raise file.problem(("memory_margin",), wrong)
    if ("gpu" in data) == ("device" in data):
        which = "both a device and a gpu" if "gpu" in data else "neither a device nor a gpu"
        raise file.problem((), f"the file has {which}, but must have one of them")
    gpu = data.get("gpu")
    if gpu is not None and gpu not in known_gpus():
        wrong = f"gpu is {gpu!r}{near(gpu, known_gpus())}, but must be one of {', '.join(known_gpus())}"
        raise file.problem(("gpu",), wrong)
    return _with_device(data)


def _with_device(data: MachineData) -> MachineData:
    """Returns the data with a whole device: that of its GPU's data sheet where it names one, and what sheets lack."""
    if "gpu" in data:
        return {**data, "device": device_figures(data["gpu"])}
    return data if data["device"] is None else {**data, "device": {**STARTS, **data["device"]}}


def devices_and_hosts(data: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Returns how many devices each host has, and how many hosts there are, by a file's data; None: it doesn't say."""
    shape = data["devices_per_host"]
    if isinstance(shape, list):
        return int(shape[0]), len(shape)
    return (None if shape is None else int(shape)), None


def figure_of(data: Mapping[str, Any], name: str) -> float | None:
    """Returns "price_per_hour" (US dollars) or "memory_margin" (the share left free) of a machine's data, or None."""
    figure = data.get(name)
    return None if figure is None else si(figure)


def host_memory(data: Mapping[str, Any]) -> HostMemory | None:
    """Returns the memory of a host beside that of its devices, by the data of a machine's file; None if it has none."""
    return of_figures(HostMemory, data["host_memory"]) if "host_memory" in data else None


def device(data: Mapping[str, Any]) -> Device:
    """Returns the device that the data of a machine, or of a host of a cluster, describe."""
    figures = data["device"]
    return of_figures(Device, figures, origin=figures["memory_bytes_per_s"]["source"])


_COUNTED = re.compile(r"(\d{1,9})\s*x\s*(\S.*)")


def counted_machine(text: str) -> tuple[str, int | None]:
    """Returns the machine or file that a text names, and how many hosts of it; None where the text has no number.

    >>> counted_machine("2 x p3.16xlarge"), counted_machine("p3.16xlarge")
    (('p3.16xlarge', 2), ('p3.16xlarge', None))
    """
    parts = _COUNTED.fullmatch(text.strip())
    return (text, None) if parts is None or os.path.exists(text) else (parts[2], int(parts[1]))
