"""Times and notes the steps of the workers of an executable's stages, and sets the cores that they run on.

A note of a computation waits until its results are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu._util.threads import pin
from alpa_dejavu.calibration.measurement import Note, StageMessage, StageNotes, StepNotes
from alpa_dejavu.calibration.measurement.notes import OTHER, RECEIVE, RUN, SEND


@final
class StageWorkers:
    """The workers of an executable's stages; the first of each stage is made to time its part of every step."""

    def __init__(self, executable: Any) -> None:
        self._meshes, self._uuid = list(executable.mesh_group), executable.exec_uuid
        self._watched = [mesh.workers[0] for mesh in self._meshes]
        self._ask(watch, self._uuid)

    def timed(self, step: Callable[[], Any]) -> tuple[Any, StepNotes]:
        """Runs a training step until every stage is done; returns its result, and notes of when each stage ran."""
        start = time.time()
        result = step()
        stages: list[StageNotes] = self._ask(last_step)
        return result, StepNotes(start, time.time(), tuple(stages))

    def noting(self, noting: bool) -> None:
        """Switches on or off that Alpa's workers note when each instruction of a training step begins and ends."""
        self._ask(note, self._uuid, noting)

    def release(self) -> None:
        """Has the workers take no more notes, and no longer wait for the end of each step by themselves."""
        self.noting(False)
        self._ask(unwatch, self._uuid)

    def call(self, function: Callable[..., Any], *args: Any) -> list[list[Any]]:
        """Calls an importable function in the process of each of Alpa's workers; returns a list for each stage."""
        return self._of_each(function, [args] * len(self._meshes))

    def pin(self, cores: Sequence[Sequence[int]]) -> list[list[Any]]:
        """Has the workers of each stage run on the given CPU cores, and returns those that each worker got."""
        return self._of_each(pin, [(of,) for of in cores])

    def _of_each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """Returns a function's answers in each worker's process; each stage has its own arguments."""
        import ray

        calls = [
            [worker.__ray_call__.remote(_without_worker, function, *args) for worker in mesh.workers]
            for mesh, args in zip(self._meshes, arguments, strict=True)
        ]
        return [ray.get(called) for called in calls]

    def _ask(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        import ray

        answers: list[Any] = ray.get([worker.__ray_call__.remote(function, *args) for worker in self._watched])
        return answers


def _without_worker(_worker: Any, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


_NAME = "_alpa_dejavu_probe"
_TASK = "stage "


def watch(worker: Any, uuid: int) -> None:
    """Starts to time the steps of an executable, by Alpa's number, in one of Alpa's workers, where this runs."""
    probe = getattr(worker, _NAME, None)
    if probe is None:
        probe = Probe(worker)
        setattr(worker, _NAME, probe)
    probe.watch(uuid)


def note(worker: Any, uuid: int, noting: bool) -> None:
    """Switches on or off that a worker notes when each instruction of an executable's next steps begins and ends."""
    getattr(worker, _NAME).noted = uuid if noting else None


def unwatch(worker: Any, uuid: int) -> None:
    """Ends the timing of an executable's steps in one of Alpa's workers, which then doesn't wait for them."""
    vars(worker.executables[uuid]).pop("execute_on_worker", None)


def last_step(worker: Any) -> StageNotes:
    """Returns when a worker's last step began and ended, with its noted instructions; it waits for the steps before."""
    probe: Probe = getattr(worker, _NAME)
    assert probe.last is not None, "a step was run"
    return probe.last


@final
class Probe:
    """A probe in one of Alpa's workers that wraps the methods which carry out instructions, and notes when each ran."""

    def __init__(self, worker: Any) -> None:
        self.noted: int | None = None
        self.last: StageNotes | None = None
        self._worker = worker
        self._notes: list[Note] | None = None
        self._tasks: dict[int, int] = {}
        self._keys: list[Any] = []
        self._taken: list[tuple[Any, float, float]] = []
        self._waited_s = 0.0
        self._arrived: dict[Any, float] = {}
        worker.run_executable = self._around(RUN, worker.run_executable)
        worker.delete_buffers = self._around(OTHER, worker.delete_buffers)
        worker.run_resharding_send_task = self._around(SEND, worker.run_resharding_send_task)
        for name in ("run_resharding_recv_task", "run_resharding_broadcast_task"):
            setattr(worker, name, self._around(RECEIVE, getattr(worker, name)))
        if hasattr(worker, "tiles"):
            self._listen(worker.tiles)

    def watch(self, uuid: int) -> None:
        """Starts to time the steps of one of an Alpa worker's executables, which is given by Alpa's number of it."""
        executable = self._worker.executables[uuid]
        for instruction in executable.instructions:
            if instruction.info.startswith(_TASK) and instruction.task_uuid is not None:
                self._tasks[instruction.task_uuid] = int(instruction.info.removeprefix(_TASK))
        original = executable.execute_on_worker

        def execute_on_worker(inputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
            self._notes = [] if self.noted == uuid else None
            start = time.time()
            original(inputs, outputs, *args, **kwargs)
            self._finish(outputs)
            end = time.time()
            self.last = StageNotes(start, end, tuple(self._notes or ()))
            self._notes = None

        executable.execute_on_worker = execute_on_worker

    def _around(self, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(uuid: Any, *args: Any, **kwargs: Any) -> Any:
            if self._notes is None:
                return original(uuid, *args, **kwargs)
            self._keys, self._taken, self._waited_s = [], [], 0.0
            start = time.time()
            result = original(uuid, *args, **kwargs)
            if what == RUN:
                self._finish(args[1])
            end = time.time()
            task = self._tasks.get(uuid) if what == RUN else None
            self._notes.append(Note(self._kind(what), task, start, end, self._waited_s, self._messages(end)))
            return result

        return noted

    def _kind(self, what: str) -> str:
        """Returns the kind of an instruction: a broadcast is a send where something was sent and nothing taken."""
        return SEND if what == RECEIVE and self._keys and not self._taken else what

    def _messages(self, end: float) -> tuple[StageMessage, ...]:
        """Returns the messages that the instruction took in or, where it took none, those that it sent."""
        if self._taken:
            return tuple(StageMessage(repr(key), asked, received_s) for key, asked, received_s in self._taken)
        return tuple(StageMessage(repr(key), end, end) for key in self._keys)

    def _finish(self, uuids: Any) -> None:
        """Waits until the arrays of these numbers are there."""
        for uuid in uuids:
            for piece in self._worker.buffers.get(uuid, ()):
                if not piece.is_deleted():
                    piece.block_until_ready()

    def _listen(self, tiles: Any) -> None:
        """Notes which messages go out and come in, and how long they are waited for."""
        mailbox, sent = tiles.mailbox, tiles._sent
        put, take, key_of = mailbox.put, mailbox.take, sent.key

        def noted_key(*channel: Any) -> Any:
            key = key_of(*channel)
            if self._notes is not None:
                self._keys.append(key)
            return key

        def noted_put(messages: Any) -> None:
            now = time.time()
            self._arrived.update(dict.fromkeys(messages, now))
            put(messages)

        def noted_take(key: Any, check: Any) -> Any:
            asked = time.time()
            message = take(key, check)
            received_s = time.time()
            arrived = self._arrived.pop(key, received_s)
            if self._notes is not None:
                self._waited_s += received_s - asked
                # One that had come before it was asked for wasn't waited for.
                self._taken.append((key, asked, arrived if arrived < asked else received_s))
            return message

        sent.key, mailbox.put, mailbox.take = noted_key, noted_put, noted_take
