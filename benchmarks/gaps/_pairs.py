"""Pairs of a model and a cluster that a seed draws, and the planning task of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

import numpy as np

from alpa_dejavu.calibration import prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import PlanningTask, Searched
from alpa_dejavu.planning._model import LAYERS
from alpa_dejavu.planning._shapes import micro_batch_counts
from alpa_dejavu.planning.model_cache import ModelCache
from alpa_dejavu.planning.traced_model import TracedModel
from alpa_dejavu.problem import Cluster, Device, Link

MODELS = {
    **dict.fromkeys(
        ("gpt-125m", "gpt-350m", "gpt-760m", "gpt-1.3b", "gpt-2.6b", "gpt-6.7b"), (64, 128, 256, 512, 1024)
    ),
    **dict.fromkeys(("moe-380m", "moe-690m", "moe-1.3b", "moe-2.4b"), (64, 128, 256, 512, 1024)),
    **dict.fromkeys(("wresnet-250m", "wresnet-500m", "wresnet-1b", "wresnet-2b"), (256, 512, 768, 1536)),
}
"""The batches that each model may be drawn with."""
MACHINES = ("p3.16xlarge", "p3.8xlarge", "g4dn.12xlarge", "p4d.24xlarge")
MOST_HOSTS = 8
ODD = ("", "", "", "slow link", "slower host")
"""How the first host of a cluster differs from the others; mostly not at all."""
SLOWER = 4.0, 2.0
"""So many times slower are the links of a host with slow ones, and the devices of a slower host."""


@final
@dataclasses.dataclass(frozen=True)
class Pair:
    """A model with its batch, and a cluster.

    Attributes:
        model: by its name.
        batch: samples of a step.
        machine: the type of the hosts.
        hosts: how many.
        odd: "slow link": what goes to and from the first host is slower; "slower host": its devices are; "": neither.
    """

    model: str
    batch: int
    machine: str
    hosts: int
    odd: str = ""

    @property
    def name(self) -> str:
        """For people, and in files."""
        odd = f", {self.odd}" if self.odd else ""
        return f"{self.model}, batch {self.batch}, {self.hosts} x {self.machine}{odd}"

    def cluster(self, more: int = 0) -> Cluster:
        """The cluster, with so many hosts more, which are like its last one."""
        cluster = named_cluster(self.machine, self.hosts + more)
        slow, slower = SLOWER
        if self.odd == "slow link":
            between = [[_slow(link, slow) if a != b and not a * b else link for b, link in enumerate(row)]
                       for a, row in enumerate(cluster.links)]  # fmt: skip
            return dataclasses.replace(cluster, links=tuple(map(tuple, between)), machine="")
        if self.odd == "slower host":
            first = dataclasses.replace(cluster.hosts[0], device=_slower(cluster.hosts[0].device, slower))
            return dataclasses.replace(cluster, hosts=(first, *cluster.hosts[1:]), machine="")
        return cluster

    def task(self, cluster: Cluster | None = None, cache: ModelCache | None = None) -> PlanningTask:
        """The task that `plan_model` makes of the pair.

        Args:
            cluster: None: the pair's own.
            cache: of what was learned of models before, which changes no plan; None: there is none.
        """
        counts = micro_batch_counts(self.batch)
        source = TracedModel(self.model, self.batch // counts[-min(len(counts), 2)], cache)
        return PlanningTask(
            source=source,
            prices=prices(cluster or self.cluster(), "none", "auto", "auto"),
            batch=self.batch,
            layers=source.numbers_of_layers(LAYERS),
            micro_batches=counts,
            chooser=Searched(),
        )


def drawn(seed: int) -> Iterator[Pair]:
    """Pairs without an end, each once; whether they fit is to be seen."""
    rng, known = np.random.default_rng(seed), set[Pair]()
    while True:
        model = str(rng.choice(list(MODELS)))
        batch, machine = int(rng.choice(MODELS[model])), str(rng.choice(MACHINES))
        hosts = int(rng.integers(1, MOST_HOSTS + 1))
        odd = str(rng.choice(ODD)) if hosts > 1 else ""
        pair = Pair(model, batch, machine, hosts, odd)
        if pair not in known:
            known.add(pair)
            yield pair


def _slow(link: Link, factor: float) -> Link:
    return dataclasses.replace(link, bytes_per_s=link.bytes_per_s / factor)


def _slower(device: Device, factor: float) -> Device:
    return dataclasses.replace(
        device,
        name=f"slower {device.name}",
        flop_per_s={dtype: rate / factor for dtype, rate in device.flop_per_s.items()},
        vector_flop_per_s=device.vector_flop_per_s / factor,
        memory_bytes_per_s=device.memory_bytes_per_s / factor,
    )
