"""How long planning takes and how much memory, beside the first release, and how that grows.

    python benchmarks/test_planning_time.py --jobs gpt-1.3b-8-v100 --first CHECKOUT --json FILE
    python benchmarks/test_planning_time.py --growth --figure docs/planning-time.svg --json FILE

A job is planned in a process of its own, from its start to the written plan: cold, with an empty cache, so that imports
and tracing are paid, and then warm, with what that has kept. Beside each run goes one of the first release on the same
job, in turns which of them is first, and ratios are medians over these pairs. `--first` is a checkout of its commit, or
`git`, which makes one in a temporary folder. `--peer` is a Python that has hetu-galvatron, whose published search on
the same model, machines and batch goes beside them (`galvatron_search.py` says what it is given): it starts from
profiled figures and looks for even pipelines, so its seconds are compared and its steps aren't. Seconds are wall time,
with `--cpu` those of the processor: where the machine isn't quiet they say more. A job that the file
has already isn't measured again.

With `--growth` it is the exponents of seconds in the numbers of devices, blocks and micro-batches, by least squares on
their logarithms, each number varied alone, and a figure of them.

References:
    Zheng et al., Alpa, OSDI 2022, table 5: Alpa's own search for GPT-39B on 64 GPUs took 2393 s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from alpa_dejavu.clusters import named_cluster, write_cluster
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.problem import Cluster, Link
from harness import Results, Table, at_least
from harness import options as parsed_options

ROOT = Path(__file__).resolve().parents[1]
FIRST = "7e522538"
"""The commit of the first release."""
LLAMA = (
    "transformer:hidden=16384,blocks=126,heads=128,kv_heads=8,feed_forward=53248,vocabulary=128256,sequence=8192,"
    "gated=yes,tied=no"
)


@final
@dataclasses.dataclass(frozen=True)
class Job:
    """A job to plan: a model for a batch, on hosts of eight GPUs of a machine, or on those of a cluster of unlike
    hosts, which is made then; and further options of `alpa-dejavu plan`.
    """

    model: str
    cluster: str
    hosts: int
    batch: int
    options: tuple[str, ...] = ()

    def words(self, folder: Path) -> list[str]:
        """The command line's words; a cluster of unlike hosts is written into the folder."""
        on = ["--cluster", self.cluster, "--hosts", str(self.hosts)]
        if self.cluster == "unlike":
            write_cluster(unlike(self.hosts), folder / "unlike.json")
            on = ["--cluster", str(folder / "unlike.json")]
        return ["plan", "--model", self.model, *on, "--batch", str(self.batch), *self.options]


JOBS: Mapping[str, Job] = {
    "gpt-39b-64-v100": Job("gpt-39b", "p3.16xlarge", 8, 1024),
    "gpt-39b-64-v100-auto": Job("gpt-39b", "p3.16xlarge", 8, 1024, ("--schedule", "auto")),
    "gpt-1.3b-8-v100": Job("gpt-1.3b", "p3.16xlarge", 1, 1024),
    "gpt-39b-64-h100": Job("gpt-39b", "dgx-h100", 8, 1024),
    "gpt-39b-256-h100": Job("gpt-39b", "dgx-h100", 32, 1024),
    "gpt-39b-1024-h100": Job("gpt-39b", "dgx-h100", 128, 2048),
    "gpt-39b-4096-h100": Job("gpt-39b", "dgx-h100", 512, 8192),
    "405b-4096-h100": Job(LLAMA, "dgx-h100", 512, 2048),
    "405b-16384-h100": Job(LLAMA, "dgx-h100", 2048, 2048),
    "gpt-39b-unlike": Job("gpt-39b", "unlike", 64, 1024),
}
_BLOCKS = "transformer:hidden=4096,blocks={},heads=32,vocabulary=51200,sequence=1024"
SERIES: Mapping[str, Mapping[int, Job]] = {
    "devices": {8 * hosts: Job("gpt-39b", "dgx-h100", hosts, 4096) for hosts in (8, 32, 128, 512)},
    "blocks": {blocks: Job(_BLOCKS.format(blocks), "dgx-h100", 8, 1024) for blocks in (12, 24, 48, 96)},
    "micro-batches": {
        count: Job("gpt-39b", "dgx-h100", 8, 4096, ("--micro-batches", str(count))) for count in (64, 256, 1024, 4096)
    },
}
"""The sizes that grow, and the job of each."""


def unlike(hosts: int) -> Cluster:
    """A cluster of so many hosts of three kinds: links within a kind are those of its machine, and between two kinds
    the slower the further they are from each other in the list.
    """
    machines = [named_cluster(name, hosts) for name in ("p3.16xlarge", "p4d.24xlarge", "dgx-h100")]
    kinds = [n * len(machines) // hosts for n in range(hosts)]
    own = [machines[kind].hosts[n] for n, kind in enumerate(kinds)]
    named = tuple(dataclasses.replace(host, name=f"{host.device.name}-{n}") for n, host in enumerate(own))

    def link(a: int, b: int) -> Link:
        ends = machines[kinds[a]].links[a][b], machines[kinds[b]].links[a][b]
        slowest = min(ends, key=lambda end: end.bytes_per_s)
        return dataclasses.replace(slowest, bytes_per_s=slowest.bytes_per_s / 2 ** abs(kinds[a] - kinds[b]))

    return Cluster("unlike", named, tuple(tuple(link(a, b) for b in range(hosts)) for a in range(hosts)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans the jobs and shows them; exit status 1 if this version couldn't plan one of them."""
    parser = parsed_options(__doc__)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="only these")
    parser.add_argument("--growth", action="store_true", help="how seconds grow, in place of the jobs")
    parser.add_argument("--first", metavar="CHECKOUT", help="run the first release beside them; `git` checks it out")
    parser.add_argument("--peer", metavar="PYTHON", help="run Galvatron's search beside them by this Python")
    parser.add_argument("--repeat", type=at_least(1), default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--limit-s", type=at_least(1), default=1200, help="of one run (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="go by the processor's seconds")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the growth as SVG")
    asked = parser.parse_args(arguments)
    figure = "cpu_s" if asked.cpu else "wall_s"
    results = Results(asked.json, {"figure": figure, "repeat": asked.repeat, "first": bool(asked.first)})
    with checkout(asked.first) as first:
        for tree in filter(None, (ROOT, first)):
            # As an installed package is: no run compiles its modules.
            folders = [str(folder) for name in ("alpa_dejavu", "patches") if (folder := tree / name).is_dir()]
            subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=True, env=environment())

        how = first, asked.peer, asked.repeat, asked.limit_s
        if asked.growth:
            sizes = [(what, number, job) for what, jobs in SERIES.items() for number, job in jobs.items()]
            for what, number, job in tqdm(sizes, unit="job"):
                results.known(what, str(number), pairs, job, *how)
        else:
            for name in tqdm(asked.jobs, unit="job"):
                results.known("jobs", name, pairs, JOBS[name], *how)
    if asked.growth:
        fits = {what: growth(results[what], figure) for what in SERIES}
        if asked.figure is not None:
            drawn(results, fits, figure, asked.figure)
        return results.shown(Table.of(_growth_rows(results, fits), _growth_columns()))
    rows = [_row(name, row, figure) for name, row in results.get("jobs", {}).items()]
    results.shown(jobs_table(rows))
    return int(any("error" in row for row in rows))


@contextlib.contextmanager
def checkout(first: str | None) -> Iterator[Path | None]:
    """The folder of the first release; None where it isn't asked for. That of `git` is gone when the block ends."""
    if first != "git":
        yield None if first is None else Path(first).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--force", f"{folder}/first", FIRST], check=True, capture_output=True)
        try:
            yield Path(folder) / "first"
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/first"], check=True, capture_output=True)


def pairs(job: Job, first: Path | None, peer: str | None, repeat: int, limit_s: float) -> dict[str, Any]:
    """The runs of a job by this version ("ours"), by the first release and by Galvatron, of one round after another."""
    ways: dict[str, Callable[[], dict[str, Any]]] = {"ours": lambda: cold_and_warm(job, ROOT, limit_s)}
    if first is not None:
        ways["first"] = lambda: cold_and_warm(job, first, limit_s)
    if peer is not None:
        ways["galvatron"] = lambda: {"cold": searched_by_galvatron(job, peer, limit_s)}
    runs: dict[str, Any] = {name: [] for name in ways}
    for number in range(repeat):
        for name in sorted(runs, reverse=bool(number % 2)):
            if not any("error" in run["cold"] for run in runs[name]):
                runs[name].append(ways[name]())
    return runs


def cold_and_warm(job: Job, tree: Path, limit_s: float) -> dict[str, Any]:
    """A run with an empty cache, and one with what that has kept."""
    with tempfile.TemporaryDirectory() as folder:
        cold = run(job, tree, Path(folder), limit_s)
        return {"cold": cold, "warm": cold if "error" in cold else run(job, tree, Path(folder), limit_s)}


def searched_by_galvatron(job: Job, peer: str, limit_s: float) -> dict[str, Any]:
    """A search by Galvatron, which knows one kind of machine and transformers of equal blocks: seconds and memory."""
    size = transformer_size(job.model)
    if size is None or job.cluster == "unlike":
        return {"error": "it takes transformers on hosts of one kind"}
    cluster = named_cluster(job.cluster, job.hosts)
    device = cluster.hosts[0].device
    blocks = [dataclasses.replace(size, num_blocks=count).num_parameters for count in (1, 2)]
    inside, between = (cluster.links[0][host].bytes_per_s / 1e9 for host in (0, min(1, job.hosts - 1)))
    figures = {
        "hosts": job.hosts, "per_host": cluster.hosts[0].num_devices, "batch": job.batch, "sequence": size.sequence,
        "hidden": size.hidden, "blocks": size.num_blocks, "vocabulary": size.vocabulary,
        "block_parameters": blocks[1] - blocks[0], "memory_gib": int(device.memory_bytes / 2**30),
        "flop_per_s": device.rate("float16"), "inside_gb_per_s": inside, "between_gb_per_s": between,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "job.json"
        asked.write_text(json.dumps(figures), encoding="utf-8")
        command = [str(Path(peer).absolute()), str(ROOT / "benchmarks" / "galvatron_search.py"), str(asked), folder]
        return timed(command, environment(), Path(folder), limit_s)


def run(job: Job, tree: Path, folder: Path, limit_s: float) -> dict[str, Any]:
    """One planning by the version in a folder `tree`, from the command line to the written plan, its cache in another
    folder: seconds, the most memory of the process, and what was planned; or an "error".
    """
    path = folder / "plan.json"
    command = [sys.executable, "-m", "alpa_dejavu", *job.words(folder), "--json", str(path)]
    imported = os.pathsep.join([str(tree), str(tree / "patches")])
    variables = environment() | {"ALPA_DEJAVU_CACHE": str(folder / "cache"), "PYTHONPATH": imported}
    figures = timed(command, variables, folder, limit_s)
    if "error" in figures:
        return figures
    plan = json.loads(path.read_text(encoding="utf-8"))
    split = {name: round(float(part_s), 4) for name, part_s in plan["planning_s"].items()}
    answer = {"stages": len(plan["stages"]), "micro_batches": plan["num_micro_batches"]}
    return figures | answer | {"step_s": plan["iteration_time_s"], "planning_s": split}


def timed(command: Sequence[str], variables: Mapping[str, str], folder: Path, limit_s: float) -> dict[str, Any]:
    """The seconds of a command and the most memory of its process; and an "error" if it fails or takes longer."""
    told = folder / "told.txt"
    started = time.perf_counter()
    with told.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=variables, cwd=folder)
        stop = threading.Timer(limit_s, process.kill)
        stop.start()
        _, status, used = os.wait4(process.pid, 0)
        stop.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    figures = {
        "wall_s": round(time.perf_counter() - started, 3),
        "cpu_s": round(used.ru_utime + used.ru_stime, 3),
        "peak_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    if not process.returncode:
        return figures
    lines = told.read_text(encoding="utf-8").strip().splitlines()
    late = figures["wall_s"] >= limit_s
    error = f"no plan in {seconds(limit_s)}" if late else (lines or [f"exit {process.returncode}"])[-1]
    return figures | {"error": error}


def environment() -> dict[str, str]:
    """The variables of processes, which may keep compiled modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def ratio(row: Mapping[str, Any], kind: str, figure: str, peer: str = "first") -> float | None:
    """The median over pairs of this version's figure to a peer's, the first release's or Galvatron's; None where one of
    both has no plan.
    """
    both = zip(row["ours"], row.get(peer, ()), strict=False)
    ratios = [
        ours[kind][figure] / beside[kind][figure]
        for ours, beside in both
        if "error" not in ours[kind] and "error" not in beside[kind]
    ]
    return statistics.median(ratios) if ratios else None


def _median(row: Mapping[str, Any], kind: str, figure: str) -> float | None:
    values = [runs[kind][figure] for runs in row["ours"] if "error" not in runs[kind]]
    return statistics.median(values) if values else None


def _row(name: str, row: Mapping[str, Any], figure: str) -> dict[str, Any]:
    last, job = row["ours"][-1]["cold"], JOBS[name]
    shown = {"job": name, "gpus": 8 * job.hosts, **last}
    for kind in ("cold", "warm"):
        shown[f"{kind}_s"], shown[f"{kind}_ratio"] = _median(row, kind, figure), ratio(row, kind, figure)
    if row.get("first"):
        first = row["first"][-1]["cold"]
        shown["first"] = first.get("error") or seconds(first[figure])
        if "step_s" in first and "step_s" in last:
            shown["step_ratio"] = last["step_s"] / first["step_s"]
    if row.get("galvatron"):
        peer = row["galvatron"][-1]["cold"]
        shown["galvatron"] = peer.get("error") or seconds(peer[figure])
        shown["peer_ratio"] = ratio(row, "cold", figure, "galvatron")
    return shown


def jobs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each job: seconds and memory of this version, and their ratios to the first release's and to
    Galvatron's search.
    """
    columns = {
        "job": "{job}", "GPUs": "{gpus}", "cold": "{cold_s:seconds}", "warm": "{warm_s:seconds}",
        "memory": "{peak_bytes:size}", "stages": "{stages}", "micro-batches": "{micro_batches}",
        "step": "{step_s:seconds}",
    }  # fmt: skip
    if any("first" in row for row in rows):
        columns |= {"first, cold": "{first}", "cold / first": "{cold_ratio:.2f}", "warm / first": "{warm_ratio:.2f}"}
        columns |= {"step / first": "{step_ratio:.3f}"}
    if any("galvatron" in row for row in rows):
        columns |= {"Galvatron": "{galvatron}", "cold / Galvatron": "{peer_ratio:.2f}"}
    return Table.of(rows, columns)


def growth(rows: Mapping[str, Mapping[str, Any]], figure: str) -> dict[str, float]:
    """The exponents of cold and warm seconds in a number, by least squares on the logarithms of both.

    >>> runs = {str(n): {"ours": [{"cold": {"s": n**2}, "warm": {"s": 3 * n}}]} for n in (2, 4, 8)}
    >>> {kind: round(exponent, 3) for kind, exponent in growth(runs, "s").items()}
    {'cold': 2.0, 'warm': 1.0}
    """
    fits = {}
    for kind in ("cold", "warm"):
        points = [(float(number), _median(row, kind, figure)) for number, row in rows.items()]
        numbers, planning_s = zip(*[(number, s) for number, s in points if s is not None], strict=True)
        fits[kind] = float(np.polyfit(np.log(numbers), np.log(planning_s), 1)[0]) if len(numbers) > 1 else float("nan")
    return fits


def _growth_rows(results: Mapping[str, Any], fits: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    figure = results["settings"]["figure"]
    rows = []
    for what, exponents in fits.items():
        points = {number: _median(row, "cold", figure) for number, row in results[what].items()}
        texts = [f"{number}: {seconds(s)}" for number, s in points.items() if s is not None]
        rows.append({"what": what, **exponents, "points": ", ".join(texts)})
    return rows


def _growth_columns() -> dict[str, str]:
    return {"seconds grow with": "{what}", "cold": "{cold:.2f}", "warm": "{warm:.2f}", "cold seconds": "{points}"}


def drawn(results: Mapping[str, Any], fits: Mapping[str, Mapping[str, float]], figure: str, file: Path) -> None:
    """Draws the seconds over each number, on logarithmic axes, into an SVG file."""
    from matplotlib.figure import Figure as Picture

    sys.path.append(str(ROOT / "examples"))
    from demo.pictures import draw, in_style, log_scale, save

    every: list[float] = []
    with in_style():
        picture = Picture(figsize=(10.0, 3.4), layout="constrained")
        for axes, what in zip(picture.subplots(1, len(fits), sharey=True, squeeze=False)[0], fits, strict=True):
            drawn: dict[str, list[tuple[float, float]]] = {}
            for kind in ("cold", "warm"):
                medians = [(float(number), _median(row, kind, figure)) for number, row in results[what].items()]
                label = f"{kind}, to the power {fits[what][kind]:.2f}"
                drawn[label] = [(number, planning_s) for number, planning_s in medians if planning_s is not None]
            draw(axes, drawn, ("{:g}".format, None))
            axes.set_xlabel(what)
            every += [planning_s for points in drawn.values() for _, planning_s in points]
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
        log_scale(axes, "y", every, seconds)
        picture.supylabel("time of planning")
    save(picture, file)


if __name__ == "__main__":
    raise SystemExit(main())
