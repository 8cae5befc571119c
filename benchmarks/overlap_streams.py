"""Two streams of a real program on this machine's CPU: reductions beside products, predicted and measured.

    python benchmarks/overlap_streams.py [--repeats N] [--json FILE]

One process computes matrix products on a core of its own. Two others, on another core, add up arrays by gloo. How much
slower each gets while the other is busy is fitted on some sizes. Then programs of other sizes are predicted from what
their products and their reductions take alone, and run: "buckets" are the gradients of layers, each added up once its
layer is computed while the next ones are; in "apart" nothing waits. Runs alone and together take turns, and the median
of their differences counts. A run beside which other programs take a tenth of the cores is made again, and the rest of
these are counted. Exit status 1 if an aim is missed.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

import numpy as np
from tqdm import tqdm

from alpa_dejavu._util import units
from alpa_dejavu.clusters.cpu_exchange import LOOPBACK, joined_by_gloo
from alpa_dejavu.costs._streams import makespan_s
from alpa_dejavu.costs.overlap import SLOWDOWNS, Overlap
from harness import Figure, Remote, Results, Table, answer_all, at_least, options, wrong_input_told

LAYERS, LAYER_S, OFF = 6, 0.06, 0.15
"""A layer's longer side takes so many seconds, and predictions may be off by this share."""
DISTURBED, TRIES, REST_S = 0.1, 8, 0.2
"""A run is made again where other programs take this share of both cores, at most so often, after so much rest."""
FITTED = ((256, 1 << 20), (512, 1 << 22))
JUDGED = tuple(itertools.product((192, 384), (1 << 19, 1 << 23)))
"""Widths of products, and bytes of reductions."""
RATIOS = (0.5, 1.0, 2.0)
"""The seconds of a layer's products over those of its reductions."""
Row = dict[str, Any]


class Work(NamedTuple):
    """What each of a program's layers does: how many products of a width, and how many reductions of some bytes."""

    width: int
    products: int
    num_bytes: int
    reductions: int


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Fits the slowdowns, and judges the programs; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=at_least(1), default=9, help="of each program (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"repeats": given.repeats})
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ValueError(f"there is {len(cores)} core, but must be 2 at least: one for products, one for reductions")
    with _Streams.started(*cores[:2]) as streams:
        fitted = results.known("fitted", "slowdowns", lambda: _fitted(streams, given.repeats))
        overlap = Overlap("streams", *(min(max(one, SLOWDOWNS[0]), SLOWDOWNS[1]) for one in fitted["slowdowns"]))
        judged = results.known("judged", "programs", lambda: _judged(streams, overlap, given.repeats))
    columns = {
        "program": "{program}",
        "products": "{width}",
        "reductions": "{num_bytes:size}",
        "computed": "{computed_s:seconds}",
        "sent": "{sent_s:seconds}",
        "together": "{together_s:seconds}",
        "predicted": "{predicted_s:seconds}",
        "off": "{off:+.1%}",
        "exposed": "{exposed_s:seconds}",
        "predicted exposed": "{predicted_exposed_s:seconds}",
    }
    widths = " and ".join(str(width) for width, _ in FITTED)
    sizes = " and ".join(units.size(num_bytes) for _, num_bytes in FITTED)
    said = (
        f"While both are busy products take {fitted['slowdowns'][0]:.2f} times as long, reductions "
        f"{fitted['slowdowns'][1]:.2f} times, fitted on products of {widths} and reductions of {sizes}. Other programs "
        f"disturbed {judged['disturbed']} runs to the last."
    )
    rows = judged["rows"]
    return results.shown(said, Table.of(rows, columns), figures=_figures(rows))


def _fitted(streams: _Streams, repeats: int) -> Row:
    """The medians of how much longer each takes beside the other one than alone."""
    slower: tuple[list[float], list[float]] = ([], [])
    for pair in FITTED:
        works = [streams.work(*pair, ratio) for ratio in (1 / 6, 6.0)]
        for _, (which, work) in tqdm(list(itertools.product(range(repeats), enumerate(works))), "fitting"):
            alone = streams.alone_s(work)[which]
            slower[which].append(streams.together(work, apart=True)[which] / alone)
    return {"slowdowns": [statistics.median(each) for each in slower], "each": slower}


def _judged(streams: _Streams, overlap: Overlap, repeats: int) -> Row:
    """Each program's medians, runs of all programs in turns."""
    works = {(pair, ratio): streams.work(*pair, ratio) for pair in JUDGED for ratio in RATIOS}
    runs: dict[Any, list[tuple[float, float, float, float]]] = {}
    for _, key, program in tqdm(list(itertools.product(range(repeats), works, ("buckets", "apart"))), "programs"):
        apart, work = program == "apart", works[key]
        computed_s, sent_s = streams.alone_s(work)
        together_s = max(streams.together(work, apart))
        runs.setdefault((program, key), []).append((
            computed_s, sent_s, together_s, _predicted_s(computed_s, sent_s, apart, overlap)
        ))  # fmt: skip
    rows = []
    for (program, ((width, num_bytes), ratio)), found in runs.items():
        computed_s, sent_s, together_s, predicted_s = (statistics.median(each) for each in zip(*found, strict=True))
        rows.append({
            "program": program, "width": width, "num_bytes": num_bytes, "ratio": ratio, "computed_s": computed_s,
            "sent_s": sent_s, "together_s": together_s, "predicted_s": predicted_s,
            "off": statistics.median(predicted / together for _, _, together, predicted in found) - 1,
            "exposed_s": max(together_s - computed_s, 0.0), "predicted_exposed_s": predicted_s - computed_s,
        })  # fmt: skip
    return {"rows": rows, "disturbed": streams.disturbed}


def _predicted_s(computed_s: float, sent_s: float, apart: bool, overlap: Overlap) -> float:
    """What both streams take together, from what each takes alone for all layers."""
    order = [(n, n + 1) for n in range(LAYERS - 1)] + [(LAYERS + n, LAYERS + n + 1) for n in range(LAYERS - 1)]
    order += [] if apart else [(n, LAYERS + n) for n in range(LAYERS)]
    computed, sent = (np.full(LAYERS, seconds / LAYERS) for seconds in (computed_s, sent_s))
    return makespan_s(computed, sent, np.array(order, dtype=np.int32), overlap)


def _figures(rows: list[Row]) -> list[Figure]:
    found = []
    for program in dict.fromkeys(row["program"] for row in rows):
        off = sorted((row["off"] for row in rows if row["program"] == program), key=abs)
        found += [_figure(program, "seconds off, median", statistics.median(map(abs, off)))]
        found += [_figure(program, "seconds off, worst", off[-1])]
    exposed = [(row["exposed_s"], row["predicted_exposed_s"]) for row in rows if row["program"] == "buckets"]
    off = [abs(predicted / measured - 1) for measured, predicted in exposed if measured]
    measured_s, predicted_s = map(sum, zip(*exposed, strict=True))
    return [
        *found,
        _figure("buckets", "exposed seconds off, median", statistics.median(off)),
        _figure("buckets", "exposed seconds off, all programs' sum", predicted_s / measured_s - 1),
    ]


def _figure(program: str, what: str, off: float) -> Figure:
    return Figure(program, what, f"at most {OFF:.0%}", f"{off:+.1%}", abs(off) <= OFF)


@final
class _Streams:
    """The processes of both streams, and what their work takes."""

    def __init__(self, products: Remote, reductions: Sequence[Remote]) -> None:
        self._products, self._reductions = products, reductions
        self.disturbed = 0
        self._product_s: dict[int, float] = {}
        self._reduction_s: dict[int, float] = {}

    @classmethod
    @contextlib.contextmanager
    def started(cls, computing: int, sending: int) -> Iterator[_Streams]:
        """Both streams, each on a core."""
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        done = multiprocessing.get_context("spawn").RawValue("i", 0)
        with contextlib.ExitStack() as running:
            def start(serve: Any, *more: Any) -> Remote:
                return running.enter_context(Remote.started(serve, *more, done, name=serve.__name__, patience_s=2.0))

            reductions = [start(_reducing, sending, rank, port) for rank in range(2)]
            yield cls(start(_computing, computing), reductions)

    def work(self, width: int, num_bytes: int, ratio: float) -> Work:
        """As much of both as makes the seconds of products `ratio` times those of reductions."""
        for known, key, once in (
            (self._product_s, width, Work(width, 1, 0, 0)), (self._reduction_s, num_bytes, Work(0, 0, num_bytes, 1)),
        ):  # fmt: skip
            if key not in known:
                for _ in range(2):  # the first one warms up
                    several = once._replace(products=once.products * 8, reductions=once.reductions * 8)
                    known[key] = max(max(self.alone_s(several)) / LAYERS / 8, 1e-6)
        longest = LAYER_S / max(ratio, 1.0)
        counts = (
            max(1, round(seconds / each)) for seconds, each in
            ((longest * ratio, self._product_s[width]), (longest, self._reduction_s[num_bytes]))
        )  # fmt: skip
        return Work(width, next(counts), num_bytes, next(counts))

    def alone_s(self, work: Work) -> tuple[float, float]:
        """The seconds of all layers' products, and of all layers' reductions, each while the other stream rests."""
        return self._run([self._products], work)[0], self._run(self._reductions, work)[0]

    def together(self, work: Work, apart: bool) -> tuple[float, float]:
        """When all products are computed, and when all is added up, in seconds from the common start."""
        computed_s, *sent_s = self._run([self._products, *self._reductions], work, waits=not apart)
        return computed_s, max(sent_s)

    def _run(self, streams: Sequence[Remote], work: Work, waits: bool = False) -> list[float]:
        for left in reversed(range(TRIES)):
            for one in streams:
                one.send("prepare", work)
            for one in streams:
                one.answer()
            begin, busy_s, own_s = time.perf_counter() + 0.005, _busy_s(), time.process_time()
            for one in streams:
                one.send("run", work, begin, waits)
            answers = [one.answer() for one in streams]
            taken_s = [end - begin for end, _ in answers]
            others_s = _busy_s() - busy_s - sum(cpu_s for _, cpu_s in answers) - (time.process_time() - own_s)
            if others_s <= DISTURBED * 2 * max(taken_s):
                break
            self.disturbed += not left
            time.sleep(REST_S)
        return taken_s


def _busy_s() -> float:
    """The seconds that all programs together have computed, and that the machine was taken away, since it began."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, _, _, steal, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def _computing(connection: Any, core: int, done: Any) -> None:
    os.sched_setaffinity(0, {core})
    answer_all(connection, _Products(done))


def _reducing(connection: Any, core: int, rank: int, port: int, done: Any) -> None:
    os.sched_setaffinity(0, {core})
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"
    kept = joined_by_gloo(rank, f"{LOOPBACK}:{port}")
    answer_all(connection, _Reductions(rank, done))
    del kept


def _wait_for(begin: float) -> None:
    """Until a moment of the clock that all processes of a machine share."""
    time.sleep(max(begin - time.perf_counter() - 0.001, 0.0))
    while time.perf_counter() < begin:
        pass


@final
class _Products:
    def __init__(self, done: Any) -> None:
        self._done = done
        self._matrices: dict[int, Any] = {}

    def prepare(self, work: Work) -> None:
        """Makes the matrices."""
        self._done.value = 0
        drawn = np.random.default_rng(0)
        if work.width not in self._matrices:
            self._matrices[work.width] = [
                drawn.standard_normal((work.width, work.width), dtype=np.float32) for _ in range(3)
            ]

    def run(self, work: Work, begin: float, waits: bool) -> tuple[float, float]:
        """Computes all layers; when that was done, and the seconds of this process's own."""
        own_s = time.process_time()
        left, right, result = self._matrices[work.width]
        _wait_for(begin)
        for _ in range(LAYERS):
            for _ in range(work.products):
                np.matmul(left, right, out=result)
            self._done.value += 1
        return time.perf_counter(), time.process_time() - own_s


@final
class _Reductions:
    def __init__(self, rank: int, done: Any) -> None:
        self._rank, self._done = rank, done
        self._arrays: dict[int, Any] = {}
        self._summed: Any = None

    def prepare(self, work: Work) -> None:
        """Makes the array that is added up, and compiles the sum."""
        import jax
        from jax.experimental.shard_map import shard_map
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        if work.num_bytes in self._arrays or not work.num_bytes:
            return
        mesh = Mesh(np.array(jax.devices()), ("x",))
        if self._summed is None:
            self._summed = jax.jit(shard_map(
                lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec()
            ))  # fmt: skip
        here = jax.device_put(np.ones((1, work.num_bytes // 4), np.float32), jax.local_devices()[0])
        self._arrays[work.num_bytes] = jax.make_array_from_single_device_arrays(
            (2, work.num_bytes // 4), NamedSharding(mesh, PartitionSpec("x")), [here]
        )

    def run(self, work: Work, begin: float, waits: bool) -> tuple[float, float]:
        """Adds up all layers' arrays, each layer's once its products are done if these are waited for; when that was,
        and the seconds of this process's own.
        """
        own_s = time.process_time()
        array = self._arrays.get(work.num_bytes)
        _wait_for(begin) if self._rank == 0 else time.sleep(max(begin - time.perf_counter(), 0.0))
        for layer in range(LAYERS):
            while waits and self._rank == 0 and self._done.value <= layer:
                time.sleep(5e-5)
            for _ in range(work.reductions):
                self._summed(array).block_until_ready()
        return time.perf_counter(), time.process_time() - own_s


if __name__ == "__main__":
    raise SystemExit(main())
