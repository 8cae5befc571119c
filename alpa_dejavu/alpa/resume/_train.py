"""The training loop: where hosts are lost, or memory runs out, it goes on from the last checkpoint by another plan."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, final

from alpa_dejavu._util import units
from alpa_dejavu._util.causes import with_causes
from alpa_dejavu.alpa.resume._session import HostsLostError, Recovery, Session, Trained
from alpa_dejavu.clusters.changed_cluster import with_more_memory
from alpa_dejavu.planning.replanning import fallback, replan
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.kept import Kept

_log = logging.getLogger("alpa_dejavu")
_POLL_S = 0.2
_LESS_MEMORY = 0.1
"""The share of each device's memory that the next plan must do without where one ran out of it."""
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED", "out of memory"
"""The status by which XLA says that an allocation failed, and the words of other allocators."""


@final
@dataclasses.dataclass(frozen=True)
class WallClock:
    """A clock by which a training loop measures time, waits, and ends steps that hang.

    Attributes:
        now_s: a function that returns the time in seconds, from any beginning.
        sleep: a function that waits for so many seconds.
        after: a function that makes a timer; once started, it calls a function after so many seconds unless it is
            cancelled before.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    after: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer


def train(
    session: Session,
    plan: Plan,
    steps: int,
    *,
    every: int = 10,
    kept: Kept | None = None,
    most_losses: int = 3,
    notice_s: float = 60.0,
    step_timeout_s: float | None = None,
    clock: WallClock | None = None,
) -> Trained:
    """Trains by a plan and goes on by itself from the last checkpoint where hosts are lost, with those that are left,
    and where memory runs out, by a plan for devices with a tenth less of it.

    Args:
        session: the object that runs steps and writes checkpoints on the cluster.
        plan: the plan to train by; its contingencies are the plans for the loss of one host.
        steps: how many steps to train.
        every: a checkpoint is written each time that so many steps are done.
        kept: the record of what the plan was made from, to plan again when several hosts or single devices are lost, or
            memory runs out; None: only one host may be lost.
        most_losses: how many times hosts may be lost or memory may run out; the next time ends the training.
        notice_s: how many seconds after an error to wait until a host is known as lost.
        step_timeout_s: the seconds after which a step or checkpoint that hangs is interrupted, as if it had failed;
            None: none is interrupted.
        clock: the clock by which these seconds are counted; None: this machine's.

    Returns:
        The losses, the plan that was run last, and the recoveries.

    Raises:
        ValueError: steps or every below 1, or most_losses below 0.
        HostsLostError: hosts are lost, and there is no plan without them, or it has happened too often.
        MemoryError: memory ran out, and there is no plan with more room, or it has happened too often.
        TimeoutError: a step took too long, though no host is lost.
        Exception: any other error of the session is passed on.
    """
    if min(steps, every) < 1 or most_losses < 0:
        raise ValueError(f"steps is {steps}, every {every}, most_losses {most_losses}: give at least 1, 1 and 0")
    loop = _Loop(session, plan, steps, every, kept, most_losses, notice_s, step_timeout_s, clock or WallClock())
    try:
        while True:
            try:
                loop.run()
                return loop.result()
            except Exception as error:
                loop.recover(error)
    finally:
        session.stop()


@final
class _Loop:
    """A training under way: its plan, its last checkpoint, its losses and the hosts that it has lost."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        steps: int,
        every: int,
        kept: Kept | None,
        most_losses: int,
        notice_s: float,
        step_timeout_s: float | None,
        clock: WallClock,
    ) -> None:
        self._session, self._first, self._steps, self._every, self._kept = session, plan, steps, every, kept
        self._most, self._notice_s, self._timeout_s, self._clock = most_losses, notice_s, step_timeout_s, clock
        self._plan, self._checkpoint, self._done = plan, 0, 0
        self._losses: dict[int, float] = {}
        self._lost: list[str] = []
        self._spared_share: float | None = None
        self._recoveries: list[Recovery] = []
        self._pending: Recovery | None = None
        self._began_s = self._failed_s = 0.0
        self._timed_out = threading.Event()

    def run(self) -> None:
        """Starts the session at the last checkpoint, and runs the training steps from there to the last one."""
        session = self._session
        self._began_s = self._clock.now_s()
        session.start(self._plan, self._checkpoint or None)
        self._done = self._checkpoint
        if self._pending is not None:
            ready_s = self._clock.now_s() - self._failed_s - self._pending.noticed_s
            self._pending = dataclasses.replace(self._pending, started_s=ready_s)
        while self._done < self._steps:
            self._began_s = self._clock.now_s()
            with self._watched():
                self._losses[self._done] = session.step(self._done)
            self._done += 1
            self._resumed()
            if self._done % self._every == 0:
                with self._watched():
                    session.save(self._done)
                self._checkpoint = self._done

    def result(self) -> Trained:
        """Returns the losses, last plan and recoveries of a training that has run to its end."""
        losses = tuple(self._losses[n] for n in range(self._steps))
        return Trained(losses, self._plan, tuple(self._recoveries))

    def recover(self, error: Exception) -> None:
        """Makes a plan for the hosts that are left after an error, or one with more room if memory ran out, so that
        training can run again; raises the error if neither was so.

        Raises:
            HostsLostError: there is no plan without the lost hosts, or hosts were lost too often.
            MemoryError: there is no plan with more room, or memory ran out too often.
            TimeoutError: a step took too long, though no host is lost.
        """
        full = _is_out_of_memory(error)
        gone = [] if full else self._gone(error)
        if not gone and not full:
            if self._timed_out.is_set():
                assert self._timeout_s is not None, "without one nothing times out"
                raise TimeoutError(
                    f"step {self._done} took more than {units.seconds(self._timeout_s)}, though all hosts are there; "
                    "give a longer step_timeout_s, or look at the hosts"
                ) from error
            raise error
        self._timed_out.clear()
        self._lost += gone
        happened = "memory ran out" if full else f"{' and '.join(self._lost)} lost"
        failure = MemoryError if full else HostsLostError
        if len(self._recoveries) + (self._pending is not None) >= self._most:
            raise failure(f"{happened}, once more often than most_losses, which is {self._most}") from error
        before = self._pending
        if before is None:
            self._failed_s = self._began_s
        noticed_s = self._clock.now_s() - self._failed_s
        self._session.stop()
        try:
            self._plan = self._roomier() if full else self._following()
        except (ValueError, RuntimeError) as why:
            raise failure(f"{happened}, and {why}") from error
        _log.warning(
            "%s in step %d: training goes on from step %d with a plan of %s a step instead of %s",
            happened, self._done, self._checkpoint, units.seconds(self._plan.step_s), units.seconds(self._first.step_s),
        )  # fmt: skip
        hosts, failed = ((), self._done) if before is None else (before.hosts, before.failed_step)
        self._pending = Recovery((*hosts, *gone), failed, self._checkpoint, 0.0, noticed_s, 0.0, self._plan.step_s)

    def _gone(self, error: Exception) -> list[str]:
        """Returns the hosts that are newly lost; if the error may come from such, they are waited for."""
        deadline = self._clock.now_s() + self._notice_s
        while True:
            gone = [host for host in self._session.lost() if host not in self._lost]
            if gone or self._clock.now_s() >= deadline or not self._session.suspects(error):
                return gone
            self._clock.sleep(_POLL_S)

    def _following(self) -> Plan:
        """Returns the plan for the hosts that are left."""
        if self._spared_share is None and len(self._lost) == 1 and self._lost[0] in self._first.contingencies:
            return fallback(self._first, self._lost[0]).plan
        return self._planned_again("the plan has no contingency for that")

    def _roomier(self) -> Plan:
        """Returns a plan that does with less of each device's memory than the one that ran out of it."""
        self._spared_share = (self._spared_share or 0.0) + _LESS_MEMORY
        return self._planned_again("a plan with more room is another one")

    def _planned_again(self, why: str) -> Plan:
        if self._kept is None:
            raise ValueError(f"{why}; give train(kept=read_kept(...)) what the plan was made from, and it is planned "
                             "for then")  # fmt: skip
        less = None if self._spared_share is None else with_more_memory(self._kept.cluster, 1 - self._spared_share)
        try:
            return replan(self._first, self._kept, without=self._lost, cluster=less).plan
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"there is no plan for that: {error}") from error

    def _resumed(self) -> None:
        """Notes that a step was done: if it was the first after a loss, the recovery is over."""
        if self._pending is not None:
            seconds = self._clock.now_s() - self._failed_s
            self._recoveries.append(dataclasses.replace(self._pending, seconds=seconds))
            self._pending = None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Interrupts the session if the `with` block takes too long."""
        if self._timeout_s is None:
            yield
            return
        timer = self._clock.after(self._timeout_s, self._interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _interrupt(self) -> None:
        self._timed_out.set()
        self._session.interrupt()


def _is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or one that it comes from, says that a device's memory ran out."""
    texts = [str(each).lower() for each in with_causes(error)]
    return any(said.lower() in text for text in texts for said in _OUT_OF_MEMORY)
