"""The devices that stages are on: which of them take equally long, and the groups in which they send."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util.content import content_digest
from alpa_dejavu._util.range_sums import range_sum
from alpa_dejavu.clusters.gpus import data_sheet, gpu_of, known_gpus
from alpa_dejavu.clusters.host_classes import kinds_of, members_of_kinds
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.kernels import check_fused
from alpa_dejavu.problem import Cluster, Device, Host, HostShare, MeshConfig, Model, Operators, SearchSpace, Submesh

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


def slowest_device(hosts: Sequence[Host], dtype: str = "float32") -> Device:
    """Returns the device on these hosts with the lowest rate of matrix products in a dtype, for which a stage on them
    waits.
    """
    return min((host.device for host in hosts), key=lambda device: device.rate(dtype))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageDevices:
    """The devices that a stage runs on; it also stands for other devices on which everything takes the same time."""

    # For each device the index of its host in the cluster, tensor-parallel neighbours next to each other
    hosts: tuple[int, ...]
    kinds: tuple[Device, ...]  # one `Device` for each kind of device among them, the slowest first
    # The least that a device has of its host's memory and its rates; None where some host's aren't known
    share: HostShare | None = None


@final
class StagePlaces:
    """A factory of the devices that a model's stages run on: one and the same object for all on which everything takes
    the same time.
    """

    def __init__(self, model: Model, cluster: Cluster) -> None:
        self._cluster, self._dtype = cluster, _usual_dtype(model)
        self._like: dict[tuple[object, ...], StageDevices] = {}
        self._groups: dict[tuple[StageDevices, tuple[int, ...], int], list[Group]] = {}
        self._contents: dict[StageDevices, str] = {}

    def on(self, hosts: Sequence[int]) -> StageDevices:
        """Returns the devices of a stage, given the index of the host of each device."""
        hosts = tuple(hosts)
        return self._known(self._alike(hosts), hosts, dict.fromkeys(hosts))

    def _alike(self, hosts: tuple[int, ...]) -> tuple[object, ...]:
        """Returns what tells devices, given the host of each, from others on which things don't take the same time."""
        kinds, places = kinds_of(self._cluster), list(dict.fromkeys(hosts))
        first = {kinds[host]: host for host in reversed(places)}
        last = {kinds[host]: host for host in places}
        number = {host: n for n, host in enumerate(places)}
        classes = {kind: n for n, kind in enumerate(first)}
        examples = [self._cluster.hosts[host] for host in first.values()]
        return (
            tuple(number[host] for host in hosts),
            tuple(classes[kinds[host]] for host in places),
            tuple((host.device, host.num_devices, host.memory) for host in examples),
            tuple(self._cluster.links[host][host] for host in first.values()),
            tuple(self._cluster.links[first[a]][last[b] if a == b else first[b]] for a in first for b in first),
        )

    def content(self, devices: StageDevices) -> str:
        """Returns a digest of all of devices and their links that prices go by: the same on a cluster of another number
        of hosts, with other names, prices and memory margins.
        """
        if devices not in self._contents:
            cluster = self._cluster
            common = cluster.cores, cluster.waiting, cluster.media, cluster.reduction_servers
            served = len(cluster.hosts) if cluster.reduction_servers else 0
            self._contents[devices] = content_digest(
                self._alike(devices.hosts), devices.kinds, devices.share, common, served
            )
        return self._contents[devices]

    def on_submesh(self, submesh: Submesh, hosts: Sequence[int] | None = None) -> StageDevices:
        """Returns the devices of a submesh on the hosts of these indices; without hosts, every kind of device of the
        cluster may be among them.
        """
        chosen = range(submesh.num_hosts) if hosts is None else hosts
        on_hosts = tuple(host for host in chosen for _ in range(submesh.devices_per_host))
        return (
            self.on(on_hosts)
            if hosts is not None
            else self._known((submesh,), on_hosts, [of_kind[0] for of_kind in members_of_kinds(self._cluster)])
        )

    def _known(self, key: tuple[object, ...], hosts: tuple[int, ...], places: Iterable[int]) -> StageDevices:
        if key not in self._like:
            on = [self._cluster.hosts[host] for host in places]
            kinds = sorted(dict.fromkeys(host.device for host in on), key=lambda device: device.rate(self._dtype))
            self._like[key] = StageDevices(hosts, tuple(kinds), _least_share(on))
        return self._like[key]

    def groups(self, devices: StageDevices, config: MeshConfig, axis: int) -> list[Group]:
        """Returns the groups of devices that communicate along an axis of a stage's mesh, as `MeshConfig.groups` has
        them; of several on hosts of the same kinds, which take equally long, only one.
        """
        degrees = config.data_parallel, config.tensor_parallel, config.context_parallel
        key = devices, (*degrees, config.expert_parallel, config.sharded, config.expert_tensor), axis
        if key not in self._groups:
            members = np.array(devices.hosts)[config.group_members(axis)]
            at_a_time = len(members) * self._abreast(devices.hosts)
            cluster = self._apart if self._cluster.apart(len(set(devices.hosts))) else self._cluster
            alike = np.stack([_first_places(members), np.array(kinds_of(self._cluster))[members]], axis=1)
            distinct = {row.tobytes(): n for n, row in reversed(list(enumerate(alike)))}
            groups = (tuple(members[n].tolist()) for n in sorted(distinct.values()))
            self._groups[key] = [Group(cluster, group, at_a_time) for group in groups]
        return self._groups[key]

    @functools.cached_property
    def _apart(self) -> Cluster:
        """The cluster as a stage has it whose devices are processes of one CPU: even those of one host exchange over
        the link between hosts.
        """
        links = tuple(
            tuple(row[a - 1] if a == b else link for b, link in enumerate(row))
            for a, row in enumerate(self._cluster.links)
        )
        return dataclasses.replace(self._cluster, links=links)

    def _abreast(self, hosts: tuple[int, ...]) -> int:
        """Returns how many stages like one share its hosts, if it is on several: their groups are at it at a time."""
        used = collections.Counter(hosts)
        if len(used) == 1:
            return 1
        return max(1, min(self._cluster.hosts[host].num_devices // n for host, n in used.items()))


def _first_places(members: Int[np.ndarray, "groups devices"]) -> Int[np.ndarray, "groups devices"]:
    """Returns for each device of each group, whose hosts `members` has, the first place in the group of a device of its
    host. Groups have the same where they are spread over hosts in the same way.

    >>> _first_places(np.array([[5, 5, 7, 5], [7, 7, 2, 7]])).tolist()
    [[0, 0, 2, 0], [0, 0, 2, 0]]
    """
    order = np.argsort(members, axis=1, kind="stable")
    by_host = np.take_along_axis(members, order, axis=1)
    begins = np.ones(members.shape, dtype=np.bool_)
    begins[:, 1:] = by_host[:, 1:] != by_host[:, :-1]
    starts = np.maximum.accumulate(np.where(begins, np.arange(members.shape[1]), 0), axis=1)
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.take_along_axis(order, starts, axis=1), axis=1)
    return places


def _least_share(hosts: Sequence[Host]) -> HostShare | None:
    shares = [host.memory.share(host.num_devices) for host in hosts if host.memory is not None]
    return HostShare.least(shares) if shares and all(host.memory is not None for host in hosts) else None


def _forward_operators(model: Model) -> list[tuple[Operators, int]]:
    """Returns the operators of forward passes, each with how many layers have them."""
    counts = collections.Counter(id(layer.forward) for layer in model.layers)
    unlike = {id(layer.forward): layer.forward for layer in model.layers}
    return [(operators, counts[key]) for key, operators in unlike.items()]


def _usual_dtype(model: Model) -> str:
    """Returns the dtype of most of the products' operations."""
    work: dict[str, float] = {"float32": 0.0}
    for operators, count in _forward_operators(model):
        flop = operators.flop * operators.count * operators.is_product * count
        for dtype in set(operators.dtype.tolist()):
            work[dtype] = work.get(dtype, 0.0) + float(flop[operators.dtype == dtype].sum())
    return max(work, key=lambda dtype: work[dtype])


def allowed_ranges(
    model: Model, submesh: Submesh, cluster: Cluster, space: SearchSpace, place: int
) -> Bool[np.ndarray, "L L"]:
    """Returns which ranges of layers i..j may be a stage on a submesh of a search space (the one with the index
    `place`) by Alpa's rules.

    A submesh of all devices may only have all layers. Layers are cut by the search space's `cuts`. A range's share of
    the matrix products' operations may differ from the submesh's share of the computing rate by `allowed_imbalance` of
    the search space plus one, as a factor.
    """
    num_layers, imbalance = model.num_layers, space.allowed_imbalance
    allowed = np.triu(np.ones((num_layers, num_layers), dtype=np.bool_))
    allowed &= space.cuts.allowed(num_layers, cluster.num_devices // submesh.num_devices)
    if submesh.num_devices == cluster.num_devices:
        allowed[:] = False
        allowed[0, num_layers - 1] = True
    if np.isfinite(imbalance):
        work = range_sum([layer.forward.product_flop + layer.backward.product_flop for layer in model.layers])
        share = work / max(work[0, -1], 1.0)
        devices = _rate(cluster, space, place)
        allowed &= (devices <= share * (1 + imbalance)) & (devices >= share / (1 + imbalance))
    return allowed


def _rate(cluster: Cluster, space: SearchSpace, submesh: int) -> float:
    """Returns a submesh's share of the computing rate of all hosts."""
    devices = space.submeshes[submesh].num_devices
    if space.hosts is None:
        return devices / cluster.num_devices
    whole = sum(host.num_devices * host.device.rate("float32") for host in cluster.hosts)
    return devices * slowest_device([cluster.hosts[host] for host in space.hosts[submesh]]).rate("float32") / whole


_NOT_EVERYWHERE = {
    "float4": ("fp4", "fp4"), "float8_micro": ("mxfp8", "fp4"), "float8": ("fp8", "fp8"), "tf32": ("tf32", "tf32"),
}  # fmt: skip
"""The dtypes of products that not all GPUs have: their names, and the precision of data sheets by which a GPU has them,
as what scales 32 elements of 8 bits has 4 bits, too. Where there is no bfloat16, it is computed on the units of single
precision."""


def check_computable(model: Model, cluster: Cluster) -> None:
    """Raises ValueError where a cluster's devices have no products in a precision that a model's are in, or no library
    has kernels of its fused attention for them.
    """
    devices = {host.device.name: host.device for host in cluster.hosts}.values()
    dtypes, heads = _needs(model)
    for device in devices:
        gpu = gpu_of(device.name)
        for dtype, (precision, telling) in _NOT_EVERYWHERE.items():
            if dtype in dtypes and not _computes(device, dtype):
                has = [*device.flop_per_s] if gpu is None else [*data_sheet(device.name)["flop_per_s"]]
                half = next((other for other in ("bf16", "fp16", "bfloat16", "float16") if other in has), "fp32")
                instead = {"tf32": "fp32", "float8_micro": "fp8" if "fp8" in has else half}.get(dtype, half)
                gpus = [other for other in map(gpu_of, known_gpus()) if other is not None]
                having = dict.fromkeys(
                    other.generation for other in gpus if telling in data_sheet(other.name)["flop_per_s"]
                )
                raise ValueError(
                    f"the model's products are in {precision}, but {device.name} computes none in it (it has "
                    f"{', '.join(has)}); give --precision {instead}, or GPUs of the generations {', '.join(having)}"
                )
        if gpu is not None and heads:
            check_fused(gpu, heads)


def _computes(device: Device, dtype: str) -> bool:
    """Whether a device has products in a dtype; of one without a data sheet only its own rates tell, of few bits."""
    if gpu_of(device.name) is None:
        return device.has_rate(dtype) or not dtype.startswith("float")
    return dtype in device.flop_per_s or _NOT_EVERYWHERE[dtype][1] in data_sheet(device.name)["flop_per_s"]


def _needs(model: Model) -> tuple[set[str], float]:
    """The dtypes of a model's products, and the elements of a head of its fused attention; 0: it has none."""
    records = [record for operators, _ in _forward_operators(model) for record in operators.records]
    dtypes = {record.dtype for record in records if record.kind in ("dot", "grouped")}
    heads = (float(record.input_shapes[0][-1]) for record in records if record.kind == "attention")
    narrow = {dtype[:6] for dtype in dtypes if dtype.startswith(("float8", "float4"))}
    return dtypes | narrow, max(heads, default=0.0)
