"""The loop of a training: it runs steps, keeps their state, and plans for what is left where something is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu._util.causes import with_causes
from alpa_dejavu.alpa.resume._following import Following
from alpa_dejavu.alpa.resume._session import Change, HostsLostError, Recovery, Session, Trained

_log = logging.getLogger("alpa_dejavu")
_POLL_S = 0.2
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED", "out of memory"
"""The status by which XLA says that an allocation failed, and the words of other allocators."""


@final
@dataclasses.dataclass(frozen=True)
class WallClock:
    """A clock by which a training loop measures time, waits, and ends steps that hang."""

    now_s: Callable[[], float] = time.monotonic  # a function that returns the time in seconds, from any beginning
    sleep: Callable[[float], object] = time.sleep  # a function that waits for so many seconds
    # A function that makes a timer; once started, it calls a function after so many seconds unless it is cancelled
    # before.
    after: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer


@final
@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `train` that stay as they are."""

    steps: int
    every: int | None
    copy_every: int | None
    leave_out: Callable[[], Collection[str]] | None
    most: int
    notice_s: float
    timeout_s: float | None


@final
class Loop:
    """A training under way: its plan, its last checkpoint and copy, its losses and what has happened to it."""

    def __init__(self, session: Session, following: Following, options: Options, clock: WallClock) -> None:
        self._session, self._following, self._options, self._clock = session, following, options, clock
        self._checkpoint = self._copied = self._from = self._done = 0
        self._losses: dict[int, float] = {}
        self._recoveries: list[Recovery] = []
        self._changes: list[Change] = []
        self._pending: Recovery | None = None
        self._change: Change | None = None
        self._declined: set[str] = set()
        self._retried: int | None = None
        self._began_s = self._failed_s = self._start_s = 0.0
        self._steps_s: list[float] = []
        self._timed_out = threading.Event()

    def run(self) -> bool:
        """Runs the steps from the last checkpoint or copy; returns whether all are done, else it starts again."""
        session, options = self._session, self._options
        self._began_s = self._clock.now_s()
        session.start(self._following.plan, self._from or None)
        self._start_s = self._clock.now_s() - self._began_s
        self._done, self._steps_s = self._from, []
        self._started()
        while self._done < options.steps:
            self._began_s = self._clock.now_s()
            with self._watched():
                self._losses[self._done] = session.step(self._done)
            self._done += 1
            self._resumed()
            self._steps_s.append(self._clock.now_s() - self._began_s)
            if self._kept_state() and self._changed():
                return False
        return True

    def result(self) -> Trained:
        """Returns the losses, last plan, recoveries and changes of a training that has run to its end."""
        losses = tuple(self._losses[n] for n in range(self._options.steps))
        return Trained(losses, self._following.plan, tuple(self._recoveries), tuple(self._changes))

    def recover(self, error: Exception) -> None:
        """Makes a plan for the hosts or the memory left after an error; raises it if neither was the cause, or
        HostsLostError, MemoryError or TimeoutError if there is none, or it was too often.
        """
        texts = [str(cause).lower() for cause in with_causes(error)]
        full = any(phrase.lower() in text for text in texts for phrase in _OUT_OF_MEMORY)
        gone = [] if full else self._gone(error)
        if gone is None or (not gone and not full and not self._may_retry()):
            self._raise(error)
        self._timed_out.clear()
        lost = [*self._following.lost, *(gone or ())]
        happened = "memory ran out" if full else f"{' and '.join(lost)} lost" if gone else "a worker failed"
        failure = MemoryError if full else HostsLostError
        if len(self._recoveries) + (self._pending is not None) >= self._options.most:
            raise failure(f"{happened}, once more often than most_losses, which is {self._options.most}") from error
        before = self._pending
        if before is None:
            self._failed_s = self._began_s
        noticed_s = self._clock.now_s() - self._failed_s
        self._session.stop()
        try:
            self._from = self._newest()
            if full or gone:
                self._following = self._following.roomier() if full else self._following.without(gone or ())
        except (ValueError, RuntimeError) as why:
            raise failure(f"{happened}, and {why}") from error
        plan = self._following.plan
        _log.warning(
            "%s in step %d: training goes on from step %d with a plan of %s a step instead of %s",
            happened, self._done, self._from, units.seconds(plan.step_s), units.seconds(self._following.first.step_s),
        )  # fmt: skip
        hosts, failed = ((), self._done) if before is None else (before.hosts, before.failed_step)
        self._pending = Recovery(
            (*hosts, *(gone or ())), failed, self._from, 0.0, noticed_s, 0.0, plan.step_s, happened
        )

    def _raise(self, error: Exception) -> None:
        if self._timed_out.is_set():
            assert self._options.timeout_s is not None, "without one nothing times out"
            raise TimeoutError(
                f"step {self._done} took more than {units.seconds(self._options.timeout_s)}, though all hosts are "
                "there; give a longer step_timeout_s, or look at the hosts"
            ) from error
        raise error

    def _gone(self, error: Exception) -> list[str] | None:
        """Returns newly lost hosts and devices, waited for if an error may be theirs; empty: none is; None: unknown."""
        deadline = self._clock.now_s() + self._options.notice_s
        while True:
            gone = [host for host in self._session.lost() if host not in self._following.lost]
            if gone:
                return gone
            if not self._session.suspects(error):
                return None
            self._session.stop()
            broken = self._session.broken()
            if broken is not None:
                return [device for device in broken if device not in self._following.lost]
            if self._clock.now_s() >= deadline:
                return None
            self._clock.sleep(_POLL_S)

    def _may_retry(self) -> bool:
        """Returns whether a failure without a lost device is worth another try: after other steps, and only once."""
        again = self._retried == self._done or not self._steps_s or self._timed_out.is_set()
        self._retried = self._done
        return not again

    def _newest(self) -> int:
        """Returns the step of the newest whole checkpoint or copy; 0: none yet; RuntimeError if they are lost."""
        copied = self._session.copied() if self._copied else None
        if self._copied and copied is None and not self._checkpoint:
            raise RuntimeError(f"the copy of step {self._copied} is lost with them or torn; write checkpoints, too, "
                               "with train(every=...)")  # fmt: skip
        return max(self._checkpoint, copied or 0)

    def _kept_state(self) -> bool:
        """Writes a checkpoint and makes a copy where they are due; returns whether one was made."""
        options = self._options
        due = [every is not None and self._done % every == 0 for every in (options.every, options.copy_every)]
        if due[0]:
            with self._watched():
                self._session.save(self._done)
            self._checkpoint = self._from = self._done
        if due[1]:
            with self._watched():
                self._session.copy(self._done)
            self._copied = self._from = self._done
        return any(due)

    def _changed(self) -> bool:
        """Returns whether training goes on by another plan, since hosts have joined, or are to be left out."""
        began_s, left = self._clock.now_s(), self._options.steps - self._done
        if not left:
            return False
        if self._left_out(began_s):
            return True
        joined = {host: count for host, count in self._session.joined().items() if host not in self._declined}
        return bool(joined) and self._following.kept is not None and self._repaid(joined, began_s, left)

    def _left_out(self, began_s: float) -> bool:
        """Returns whether to start again without hosts or devices that are left out, if there is a plan without."""
        asked = self._options.leave_out() if self._options.leave_out is not None else ()
        out = tuple(name for name in asked if name not in {*self._following.lost, *self._declined})
        if not out:
            return False
        stopped = False
        try:
            after = self._following.without(out)
            self._session.stop()
            stopped = True
            self._session.leave_out(out)
        except ValueError as error:
            _log.warning("%s can't be left out: %s", " and ".join(out), error)
            self._declined |= set(out)
            return stopped
        self._following = after
        _log.warning("%s left out from step %d on", " and ".join(out), self._done)
        self._change = Change((), out, self._done, began_s, self._start_s, 0.0)
        return True

    def _repaid(self, joined: dict[str, int], began_s: float, left: int) -> bool:
        """Returns whether the steps left repay moving to a plan with new hosts; else these are looked at no more."""
        before = self._following.plan
        try:
            after, moved_s = self._following.grown(joined)
        except ValueError as error:
            _log.warning("%s joined, but isn't taken in: %s", " and ".join(joined), error)
            self._declined |= joined.keys()
            return False
        # The first step after a start is longer than those that follow.
        step_s = statistics.median(self._steps_s[1:] or [before.step_s])
        saved_s, cost_s = left * step_s * (1 - after.plan.step_s / before.step_s), self._start_s + moved_s
        worth_it = saved_s > cost_s
        _log.warning("%s joined: the %d steps left take %s less with it, and the move takes %s: it is %s",
                     " and ".join(joined), left, units.seconds(max(saved_s, 0.0)), units.seconds(cost_s),
                     "taken in" if worth_it else "left unused")  # fmt: skip
        if not worth_it:
            self._declined |= joined.keys()
            return False
        self._following = after
        self._change = Change(tuple(joined), (), self._done, began_s, cost_s, saved_s)
        return True

    def _started(self) -> None:
        """Notes how long it took until a plan was ready to run, if it follows a loss or a change."""
        now_s = self._clock.now_s()
        if self._pending is not None:
            ready_s = now_s - self._failed_s - self._pending.noticed_s
            self._pending = dataclasses.replace(self._pending, started_s=ready_s)
        if self._change is not None:
            self._changes.append(dataclasses.replace(self._change, seconds=now_s - self._change.seconds))
            self._change = None

    def _resumed(self) -> None:
        """Notes that a step was done: if it was the first after a loss, the recovery is over."""
        if self._pending is not None:
            seconds = self._clock.now_s() - self._failed_s
            self._recoveries.append(dataclasses.replace(self._pending, seconds=seconds))
            self._pending = None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Interrupts the session if the `with` block takes too long."""
        if self._options.timeout_s is None:
            yield
            return
        timer = self._clock.after(self._options.timeout_s, self._interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _interrupt(self) -> None:
        self._timed_out.set()
        self._session.interrupt()
