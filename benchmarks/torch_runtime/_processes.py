"""Processes that run pipelines together: each a stage of every split that it is told of."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, final

from alpa_dejavu._util import units
from torch_runtime import _model as model

_PATIENCE_S = 300.0
_RATE = 0.01


class Split(NamedTuple):
    """Where a model is cut, and in which order the stages do their tasks.

    Attributes:
        layers: the numbers of each stage's layers.
        schedule: the path of a schedule's file, as PyTorch's runtime reads it.
    """

    layers: Sequence[Sequence[int]]
    schedule: Path


class LayerSeconds(NamedTuple):
    """How long a layer takes alone: forward, backward, and an optimizer's update."""

    forward_s: float
    backward_s: float
    update_s: float


@final
@dataclasses.dataclass(frozen=True)
class Processes:
    """Processes that do what they are told, all at the same time."""

    pids: list[int]
    pipes: list[Connection]

    def all(self, what: str, *arguments: Any) -> list[Any]:
        """Has all do something, and returns what each answers.

        Raises:
            RuntimeError: one of them couldn't; with what it said.
        """
        for pipe in self.pipes:
            pipe.send((what, arguments))
        return [_answer(pipe) for pipe in self.pipes]

    def one(self, number: int, what: str, *arguments: Any) -> Any:
        """Has one of them do something, and returns its answer."""
        self.pipes[number].send((what, arguments))
        return _answer(self.pipes[number])

    def step_s(self, split: str) -> float:
        """Runs a step by a split that all are prepared for; its seconds, from the first begin to the last end."""
        spans = self.all("step", split)
        return float(max(end for _, end in spans) - min(begin for begin, _ in spans))


@contextlib.contextmanager
def started(count: int, sizes: model.Sizes, micro_batches: int) -> Iterator[Processes]:
    """Starts processes that reach each other over the loopback, and ends them in every way out."""
    context = multiprocessing.get_context("spawn")
    ends, running = [], []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, count, port, sizes, micro_batches), daemon=True
            )
            process.start()
            running.append(process)
            ends.append(ours)
        for pipe in ends:
            _answer(pipe)
        yield Processes([process.pid or 0 for process in running], ends)
    finally:
        for process in running:
            process.kill()
            process.join()


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_S):
        raise RuntimeError(f"a process of the pipeline hasn't answered in {units.seconds(_PATIENCE_S)}")
    worked, answer = pipe.recv()
    if not worked:
        raise RuntimeError(f"a process of the pipeline failed: {answer}")
    return answer


def _serve(pipe: Connection, rank: int, count: int, port: int, sizes: model.Sizes, micro_batches: int) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
        worker = _Worker(rank, count, sizes, micro_batches)
        pipe.send((True, None))
        while True:
            what, arguments = pipe.recv()
            pipe.send((True, getattr(worker, what)(*arguments)))
    except EOFError:
        return
    except Exception as error:  # whatever it is, the other side is told
        pipe.send((False, repr(error)))


class _Worker:
    def __init__(self, rank: int, count: int, sizes: model.Sizes, micro_batches: int) -> None:
        self.rank, self.count, self.sizes, self.micro_batches = rank, count, sizes, micro_batches
        self.prepared: dict[str, tuple[Any, dict[int, Any], Any]] = {}
        self.words, self.targets = model.data_of(sizes, micro_batches)

    def prepare(self, name: str, split: Split) -> None:
        """Makes this process's stages, and PyTorch's runtime for them, which loads the schedule."""
        import torch
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        rows = Path(split.schedule).read_text(encoding="utf-8").splitlines()
        own = sorted({int(cell.split("FBIW"[0])[0]) for cell in rows[self.rank].split(",") if "F" in cell})
        modules = {stage: model.stage_of(self.sizes, split.layers[stage]) for stage in own}
        stages = [
            PipelineStage(module, stage, len(split.layers), torch.device("cpu")) for stage, module in modules.items()
        ]
        schedule = _PipelineScheduleRuntime(stages, self.micro_batches, loss_fn=model.loss_of)
        schedule._load_csv(str(split.schedule))
        parameters = [each for module in modules.values() for each in module.parameters()]
        self.prepared[name] = schedule, modules, torch.optim.SGD(parameters, lr=_RATE)

    def step(self, name: str) -> tuple[float, float]:
        """Runs a step; when it began and ended."""
        import torch

        schedule, _, optimizer = self.prepared[name]
        torch.distributed.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        self._passes(schedule)
        optimizer.step()
        return begin, time.perf_counter()

    def gradients(self, name: str) -> dict[int, list[list[Any]]]:
        """Runs the passes of a step; the gradients of each of this process's stages, layer by layer."""
        schedule, modules, optimizer = self.prepared[name]
        optimizer.zero_grad()
        self._passes(schedule)
        return {stage: model.gradients(list(module)) for stage, module in modules.items()}

    def whole_gradients(self) -> list[list[Any]]:
        """The gradients of the whole model in this process alone, layer by layer."""
        return model.gradients_on_one_device(self.sizes, self.micro_batches)

    def _passes(self, schedule: Any) -> None:
        own = {stage.stage_index for stage in schedule._stages}
        inputs = (self.words,) if 0 in own else ()
        target = self.targets if schedule._num_stages - 1 in own else None
        schedule.step(*inputs, target=target, return_outputs=False)

    def layer_seconds(self, repeats: int) -> list[LayerSeconds]:
        """How long each layer takes in this process, alone: the medians of some passes of a micro-batch."""
        import torch

        words, target = (each[: self.sizes.samples] for each in (self.words, self.targets))
        found = []
        for number in range(self.sizes.layers):
            layer = model.layer_of(self.sizes, number)
            last = number == self.sizes.layers - 1
            optimizer = torch.optim.SGD(layer.parameters(), lr=_RATE)
            took: list[tuple[float, float, float]] = []
            for _ in range(repeats):
                x = words if number == 0 else model.passed(self.sizes).requires_grad_()
                y, forward_s = _timed(lambda: model.loss_of(layer(x), target) if last else layer(x))  # noqa: B023
                _, backward_s = _timed(lambda: y.backward() if last else y.backward(torch.ones_like(y)))  # noqa: B023
                _, update_s = _timed(optimizer.step)
                took.append((forward_s, backward_s, update_s))
            found.append(LayerSeconds(*(statistics.median(each) for each in zip(*took[1:], strict=True))))
        return found

    def transfer_seconds(self, repeats: int) -> float:
        """How long what one layer hands to the next takes from the first process to the second: half a round trip."""
        import torch

        if self.rank > 1:
            return 0.0
        tensor, took = model.passed(self.sizes), []
        for _ in range(repeats + 1):
            _, seconds = _timed(lambda: _there_and_back(torch.distributed, tensor, self.rank))
            took.append(seconds / 2)
        return statistics.median(took[1:])


def _there_and_back(distributed: Any, tensor: Any, rank: int) -> None:
    for turn in range(2):
        if turn == rank:
            distributed.send(tensor, 1 - rank)
        else:
            distributed.recv(tensor, 1 - rank)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = call()
    return found, time.perf_counter() - begin
