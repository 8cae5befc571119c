"""What training loses with a device, with memory or with a host, and gains with a host that joins: tried on Ray.

    python benchmarks/recovery.py --json recovery.json

Perceptrons are trained through Alpa by `alpa_dejavu.alpa.resume`, on CPU devices of Ray nodes of this machine. On the
way something happens, about which nobody does anything:

- a device is killed, one of four of a host: the process that has it ends, and a probe fails in each process that gets
  it from then on;
- memory runs out: a worker asks its device for a petabyte in the place of a step, and XLA refuses. The plan before is
  for devices that have just enough for it;
- a host is killed, and there is no disk: its stages come back from the copy in a neighbour's memory;
- a replica is suspected for long, as `Suspects` is told by hand here: its device is left out;
- a host joins another one, while many steps are left, and while few are. Each is pinned to a core of its own.

Losses are compared with those of plain JAX on one device, undisturbed. `--cases` chooses among them.
"""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from _measured_models import perceptron
from alpa_dejavu.alpa.local_cluster import LocalCluster, device_answers, local_cluster, lose_device, lose_host
from alpa_dejavu.alpa.ray_cluster import connected_cluster
from alpa_dejavu.alpa.resume import AlpaSession, Trained, train
from alpa_dejavu.clusters.changed_cluster import with_more_memory
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.planning import PlanningResult, plan_model
from alpa_dejavu.planning.kept import Kept
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.training.robust import Suspects
from harness import Figure, Results, Table, options, wrong_input_told

STEPS, EVERY, HAPPENS_IN, LAYERS = 16, 4, 9, 4
DIFFERENCE = 1e-4
"""At most so much of a loss, relative, from an undisturbed run."""
SMALL, LARGE = partial(perceptron, widths=(256,) * 9), partial(perceptron, widths=(1536,) * 9)


@final
@dataclasses.dataclass(frozen=True)
class Case:
    """A training to which something happens.

    Attributes:
        about: what happens.
        hosts, devices: on how many hosts with how many devices each.
        happens: is called when the step begins in which it happens.
        causes: what the training's recoveries and changes are to be called, in their order.
        model, batch, micro_batches, steps, replicas: what is trained, how, for how long, and with how many replicas of
            each stage at least.
        disk: whether checkpoints are written; else copies are kept on neighbours' hosts.
        tight: whether the devices are planned for with just enough memory.
        grows: whether all hosts but one are lost before, and each has a core of its own.
    """

    about: str
    hosts: int
    devices: int
    happens: Callable[[LocalCluster], object]
    causes: tuple[str, ...]
    model: Callable[[int], Any] = SMALL
    batch: int = 256
    micro_batches: int = 4
    steps: int = STEPS
    replicas: int = 1
    disk: bool = True
    tight: bool = False
    grows: bool = False


def _device(_cluster: LocalCluster) -> None:
    lose_device()


def _host(_cluster: LocalCluster) -> None:
    lose_host()


def _memory(_cluster: LocalCluster) -> None:
    import ray
    from alpa.device_mesh import get_global_virtual_physical_mesh

    meshes = get_global_virtual_physical_mesh().launched_physical_mesh_group.meshes
    ray.get([worker.__ray_call__.remote(_fill) for mesh in meshes for worker in mesh.workers])


def _fill(worker: Any) -> None:
    """Has a worker's executables ask for a petabyte."""

    def run(*_arguments: Any, **_options: Any) -> None:
        jnp.zeros(2**50, jnp.uint8).block_until_ready()

    for executable in worker.executables.values():
        executable.execute_on_worker = run


CASES = {
    "device": Case("one of four devices is killed", 1, 4, _device, ("lost",)),
    "memory": Case("memory runs out", 2, 1, _memory, ("memory ran out",), batch=2048, tight=True),
    "host": Case("a host is killed, without a disk", 3, 1, _host, ("lost",), disk=False),
    "replica": Case("a suspected replica is left out", 1, 4, lambda _: None, ("left out",), replicas=4),
    "joins": Case("a host joins, many steps are left", 2, 1, LocalCluster.add_host, ("joined",), LARGE, 512, 8, 110,
                  grows=True),
    "late": Case("a host joins, few steps are left", 2, 1, LocalCluster.add_host, (), LARGE, 512, 8, grows=True),
}


@final
class Job:
    """What a case trains: its step, its first state and its batches, in which something happens."""

    def __init__(self, case: Case, cluster: LocalCluster | None = None) -> None:
        self._case, self._cluster, self._happened = case, cluster, cluster is None
        self.step, ((self._weights, self._momenta), self._data) = case.model(case.batch)
        self._started = False
        self._nodes: set[str] = set()
        self.begins_s: list[list[tuple[int, float]]] = []
        self.suspects = Suspects(max(case.replicas, 2), patience=1)

    def state(self) -> Any:
        """Weights by chance that keep activations in size, and momenta of zero."""
        rng = np.random.default_rng(0)
        self._started = True
        drawn = [jax.tree_util.tree_map(lambda leaf: _drawn(rng, leaf, (2 / leaf.shape[0]) ** 0.5), self._weights)]
        return drawn[0], jax.tree_util.tree_map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._momenta)

    def batch(self, number: int) -> Any:
        """The batch of a step, after what happens when it begins."""
        if self._started:  # to compile
            self._started = False
            self.begins_s.append([])
        else:
            self._began(number)
        rng = np.random.default_rng(number)
        return jax.tree_util.tree_map(lambda leaf: _drawn(rng, leaf, 1.0), self._data)

    def _began(self, number: int) -> None:
        if not self.begins_s:  # plain JAX
            return
        if not self.begins_s[-1] and self._case.grows:
            self._pin()
        self.begins_s[-1].append((number, time.perf_counter()))
        if number >= HAPPENS_IN and self._case.replicas > 1:
            self.suspects = self.suspects.seen({"whole": [1.0, float("inf"), *[1.0] * (self._case.replicas - 2)]})
        if number == HAPPENS_IN and not self._happened:
            self._happened = True
            assert self._cluster is not None
            self._case.happens(self._cluster)

    def _pin(self) -> None:
        """Pins the first plan's host to a core, and the one that joined to the other."""
        import ray
        from alpa.device_mesh import get_global_virtual_physical_mesh

        meshes = get_global_virtual_physical_mesh().launched_physical_mesh_group.meshes
        nodes = [[info["NodeID"] for info in mesh.host_info] for mesh in meshes]
        self._nodes = self._nodes or {node for of_mesh in nodes for node in of_mesh}
        ray.get([worker.__ray_call__.remote(_pinned, int(node not in self._nodes))
                 for mesh, of_mesh in zip(meshes, nodes, strict=True)
                 for worker, node in zip(mesh.workers, of_mesh, strict=True)])  # fmt: skip

    def step_s(self, run: int) -> float:
        """The median seconds of a step, between starts, with neither a checkpoint nor the first step in them."""
        begins = self.begins_s[run]
        seconds = [later - begin for (number, begin), (_, later) in itertools.pairwise(begins[1:])
                   if (number + 1) % EVERY]  # fmt: skip
        return statistics.median(seconds)


def _drawn(rng: np.random.Generator, leaf: Any, scale: float) -> Any:
    return (rng.normal(size=leaf.shape) * scale).astype(leaf.dtype)


def _pinned(_worker: Any, core: int) -> None:
    from alpa_dejavu._util.threads import pin

    pin([core])


def tried(case: Case) -> dict[str, Any]:
    """What happens to a case's training, as a row."""
    import alpa

    with local_cluster(case.devices, case.hosts) as cluster, tempfile.TemporaryDirectory() as folder:
        if case.grows:
            _leave_one()
        planned = _planned(case, connected_cluster())
        alpa.shutdown()
        job = Job(case, cluster)
        session = AlpaSession(job.step, job.state, job.batch, folder if case.disk else None, probe=device_answers)
        trained = train(
            session, planned.plan, case.steps, every=EVERY if case.disk else None,
            copy_every=None if case.disk else EVERY, kept=Kept.of(planned), step_timeout_s=120.0,
            leave_out=(lambda: session.replica_devices(job.suspects.left_out)) if case.replicas > 1 else None,
        )  # fmt: skip
    return _row(case, planned.plan, trained, job)


def _leave_one() -> None:
    """Loses a host, and waits until Ray knows: a local cluster of one host can't grow."""
    import ray

    lost = lose_host()
    while any(node["Alive"] and node["NodeID"] == lost for node in ray.nodes()):
        time.sleep(0.2)


def _planned(case: Case, cluster: Cluster) -> PlanningResult:
    if case.grows:
        (host,) = cluster.hosts
        core = dataclasses.replace(host, device=measured_cpu(os.cpu_count() or 1))
        cluster = dataclasses.replace(cluster, name="a core", hosts=(core,), cores=None)

    def asked(cluster: Cluster) -> PlanningResult:
        return plan_model(case.model, cluster, batch=case.batch, micro_batches=case.micro_batches, layers=LAYERS,
                          replicas=case.replicas)  # fmt: skip

    planned = asked(cluster)
    if case.tight:
        needed = max(stage.memory_bytes / stage.memory_limit_bytes for stage in planned.plan.stages)
        planned = asked(with_more_memory(cluster, 1.08 * needed))
    return planned


def _row(case: Case, before: Plan, trained: Trained, job: Job) -> dict[str, Any]:
    expected = _undisturbed(case)
    causes = [*(each.cause for each in trained.recoveries), *("joined" if each.joined else "left out"
                                                              for each in trained.changes)]  # fmt: skip
    row: dict[str, Any] = {
        "about": case.about,
        "before": _label(before),
        "after": _label(trained.plan),
        "as_expected": len(causes) == len(case.causes) and all(map(str.__contains__, causes, case.causes)),
        "causes": causes,
        "difference": float(np.max(np.abs(np.array(trained.losses) / np.array(expected) - 1))),
    }
    for each in trained.recoveries:
        row |= {"steps_lost": each.steps_lost, "seconds": each.seconds, "noticed_s": each.noticed_s,
                "started_s": each.started_s}  # fmt: skip
    for change in trained.changes:
        left = case.steps - change.step
        row |= {"steps_lost": 0, "seconds": change.seconds, "started_s": change.seconds, "cost_s": change.cost_s,
                "saved_s": change.saved_s, "left": left, "before_s": job.step_s(0), "after_s": job.step_s(1),
                "really_saved_s": left * (job.step_s(0) - job.step_s(1))}  # fmt: skip
    return row


def _label(plan: Plan) -> str:
    parts = [f"{stage.layers[0]}-{stage.layers[1]} on {stage.submesh.num_devices}" for stage in plan.stages]
    remat = [str(n) for n, stage in enumerate(plan.stages) if stage.remat != "none"]
    return ", ".join(parts) + (f", remat in {' '.join(remat)}" if remat else "")


def _undisturbed(case: Case) -> list[float]:
    job, losses = Job(case), []
    alone, state = jax.jit(job.step), job.state()
    job._started = False
    for number in range(case.steps):
        state, loss = alone(state, job.batch(number))
        losses.append(float(loss))
    return losses


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the cases; the exit status is 1 where training didn't go on as it was to."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"steps": STEPS, "every": EVERY})
    rows = [results.known("cases", name, partial(tried, CASES[name])) for name in given.cases]
    going_on = {"what happens": "{about}", "steps lost": "{steps_lost}", "until the next step": "{seconds:seconds}",
                "to notice": "{noticed_s:seconds}", "to compile and restore": "{started_s:seconds}",
                "largest difference of a loss": "{difference:.1e}"}  # fmt: skip
    plans = {"what happens": "{about}", "layers on devices before": "{before}", "after": "{after}"}
    joins = {"what happens": "{about}", "step before": "{before_s:seconds}", "step after": "{after_s:seconds}",
             "steps left": "{left}", "expected to be saved": "{saved_s:seconds}", "saved": "{really_saved_s:seconds}",
             "move expected to take": "{cost_s:seconds}", "taken": "{seconds:seconds}"}  # fmt: skip
    figures = [figure for row in rows for figure in _figures(row)]
    grown = [row for row in rows if "joined" in row["causes"]]
    return results.shown(
        Table.of(rows, going_on), Table.of(rows, plans, "Plans"),
        *([Table.of(grown, joins, "A host that joins")] if grown else []), figures=figures,
    )  # fmt: skip


def _figures(row: Mapping[str, Any]) -> list[Figure]:
    about = row["about"]
    found = [
        Figure(about, "what was done about it", "as it was to be", ", ".join(row["causes"]) or "nothing",
               row["as_expected"]),
        Figure(about, "largest difference of a loss to an undisturbed run", f"at most {DIFFERENCE:g}",
               f"{row['difference']:.1e}", row["difference"] <= DIFFERENCE),
    ]  # fmt: skip
    if "joined" in row["causes"]:  # a suspected replica is left out whatever that costs
        saved, took = row["really_saved_s"], row["seconds"]
        found.append(Figure(about, "seconds saved over those of the move", "more", f"{saved:.1f} over {took:.1f}",
                            saved > took))  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main())
