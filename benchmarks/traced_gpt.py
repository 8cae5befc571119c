"""A small GPT in PyTorch on CPU processes, recorded by PyTorch's profiler, with a fault put in on purpose if asked.

It needs torch alone, so it runs in an environment of its own: `python traced_gpt.py FOLDER --fault "one slow rank"`.
Each rank writes FOLDER/rank0.json.gz ...; FOLDER/seconds.json has the median seconds of steps without a profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

FAULTS = (
    "none", "one slow rank", "a slow link", "attention that isn't fused", "products in single precision",
    "loading data", "small kernels, bound by the host", "imbalance", "exchanges that don't hide",
)  # fmt: skip
VOCABULARY = 2048


class Norm(nn.Module):
    """Layer normalization, as one operator or written out in many."""

    def __init__(self, hidden: int, written_out: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.written_out = written_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the normalized activations."""
        if not self.written_out:
            return F.layer_norm(x, x.shape[-1:], self.scale, self.shift)
        rows = []
        for row in x.flatten(0, 1).split(4):
            centred = row - row.mean(-1, keepdim=True)
            rows.append(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.scale + self.shift)
        return torch.cat(rows).view_as(x)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, hidden: int, heads: int, fault: str) -> None:
        super().__init__()
        small = fault == "small kernels, bound by the host"
        self.heads, self.fused = heads, fault != "attention that isn't fused"
        self.first, self.second = Norm(hidden, small), Norm(hidden, small)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the block's activations."""
        batch, length, hidden = x.shape
        parts = self.qkv(self.first(x)).split(hidden, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        if self.fused:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, float("-inf"))
            attended = scores.softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """A GPT."""

    def __init__(self, hidden: int, blocks: int, heads: int, length: int, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, fault) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits of tokens."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _hog(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


class Samples(torch.utils.data.IterableDataset):
    """Random samples, of which each takes some time."""

    def __init__(self, batch: int, length: int, sleep_s: float) -> None:
        self.batch, self.length, self.sleep_s = batch, length, sleep_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self.sleep_s)
            yield torch.randint(0, VOCABULARY, (self.batch, self.length))


def rank(number: int, options: argparse.Namespace) -> None:
    """Trains as one rank, first without a profiler and then with it."""
    fault, world = options.fault, options.ranks
    torch.set_num_threads(1)
    torch.manual_seed(0)
    core = number % (os.cpu_count() or 1)
    os.sched_setaffinity(0, {core})
    hog = None
    if fault == "one slow rank" and number == world - 1:
        hog = multiprocessing.get_context("spawn").Process(target=_hog, args=(core,), daemon=True)
        hog.start()
    if world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=number, world_size=world)
    model = GPT(options.hidden, options.blocks, options.heads, options.length, fault)
    late = fault == "exchanges that don't hide"
    trained = nn.parallel.DistributedDataParallel(model) if world > 1 and not late else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = options.batch // world
    if fault == "imbalance":
        batch = batch * 3 // 2 if number == world - 1 else batch // 2
    samples = Samples(batch, options.length, options.sleep if fault == "loading data" else 0.0)
    loader = iter(torch.utils.data.DataLoader(samples, batch_size=None))
    half = fault != "products in single precision" and options.dtype == "bfloat16"

    def step() -> None:
        tokens = next(loader)
        with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
            loss = F.cross_entropy(trained(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        if late and world > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for _ in range(options.steps + 2):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    recording = schedule(wait=0, warmup=1, active=options.steps)
    path = options.folder / f"rank{number}.json"
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, schedule=recording,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for _ in range(options.steps + 1):
            step()
            profiler.step()
    _pack(path)
    if number == 0:
        (options.folder / "seconds.json").write_text(json.dumps({"median_s": statistics.median(seconds[2:])}))
    if world > 1:
        dist.destroy_process_group()
    if hog is not None:
        hog.kill()


def _pack(path: pathlib.Path) -> None:
    """Packs a trace, without the names of this machine and its folders."""
    trace = json.loads(path.read_text())
    for name in ("traceName", "host_name", "trace_id"):
        trace.pop(name, None)
    path.with_suffix(".json.gz").write_bytes(gzip.compress(json.dumps(trace).encode(), mtime=0))
    path.unlink()


def main() -> None:
    """Records the traces of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    for name, value in {
        "ranks": 2, "hidden": 256, "blocks": 4, "heads": 4, "length": 256, "batch": 8, "steps": 5, "port": 29531,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sleep", type=float, default=0.3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.ranks == 1:
        rank(0, options)
    else:
        torch.multiprocessing.spawn(rank, (options,), options.ranks)


if __name__ == "__main__":
    main()
