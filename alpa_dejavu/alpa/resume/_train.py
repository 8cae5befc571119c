"""Training that goes on from the last checkpoint by another plan where hosts, devices or memory are lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from alpa_dejavu.alpa.resume._following import Following
from alpa_dejavu.alpa.resume._loop import Loop, Options, WallClock
from alpa_dejavu.alpa.resume._session import Session, Trained
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept


def train(
    session: Session,
    plan: Plan,
    steps: int,
    *,
    every: int | None = 10,
    copy_every: int | None = None,
    kept: Kept | None = None,
    leave_out: Callable[[], Collection[str]] | None = None,
    most_losses: int = 3,
    notice_s: float = 60.0,
    step_timeout_s: float | None = None,
    clock: WallClock | None = None,
) -> Trained:
    """Trains by a plan and goes on by itself from the last checkpoint or copy where hosts, devices or memory are lost.

    With lost hosts and devices it goes on without them; where memory ran out, by a plan for devices with a tenth less
    of it. Where a worker failed though all devices compute, it goes on by the same plan, unless that happens again in
    the same step.

    After each checkpoint or copy it looks for hosts that have joined. It takes them in where the steps that are left
    are expected to repay moving the training state and compiling again, both by what the last start took.

    Args:
        session: the object that runs steps and writes checkpoints on the cluster.
        plan: the plan to train by; its contingencies are the plans for the loss of one host.
        steps: how many steps to train.
        every: a checkpoint is written each time that so many steps are done; None: none is written.
        copy_every: the state is copied to neighbours' hosts each time that so many steps are done; None: it isn't.
        kept: the record of what the plan was made from, to plan again when several hosts or single devices are lost,
            memory runs out, or hosts join; None: only one host may be lost.
        leave_out: a function that returns hosts and devices, such as "host-1/3", that are to be left out; asked after
            each checkpoint or copy.
        most_losses: how many times hosts may be lost or memory may run out; the next time ends the training.
        notice_s: how many seconds after an error to wait until a host is known as lost.
        step_timeout_s: the seconds after which a step or checkpoint that hangs is interrupted, as if it had failed;
            None: none is interrupted.
        clock: the clock by which these seconds are counted; None: this machine's.

    Returns:
        The losses, the plan that was run last, the recoveries, and the changes for hosts that joined or were left out.

    Raises:
        ValueError: steps, every or copy_every below 1, or most_losses below 0; both every and copy_every are None, or
            the session can't do what they ask for.
        HostsLostError: hosts are lost, and there is no plan or no state without them, or it has happened too often.
        MemoryError: memory ran out, and there is no plan with more room, or it has happened too often.
        TimeoutError: a step took too long, though no host is lost.
        Exception: any other error of the session is passed on.
    """
    counts = [count for count in (every, copy_every) if count is not None]
    if min([steps, *counts]) < 1 or most_losses < 0:
        raise ValueError(f"steps is {steps}, every {every}, copy_every {copy_every}, most_losses {most_losses}: give "
                         "at least 1, 1, 1 and 0")  # fmt: skip
    _check_session(session, every, copy_every)
    options = Options(steps, every, copy_every, leave_out, most_losses, notice_s, step_timeout_s)
    loop = Loop(session, Following(plan, kept, plan), options, clock or WallClock())
    try:
        while True:
            try:
                while not loop.run():
                    session.stop()
                return loop.result()
            except Exception as error:
                loop.recover(error)
    finally:
        session.stop()
        session.close()


def _check_session(session: Session, every: int | None, copy_every: int | None) -> None:
    if every is None and copy_every is None:
        raise ValueError("every and copy_every are None, but one of them must be a number of steps; without "
                         "checkpoints or copies there is nothing to go on from")  # fmt: skip
    if every is not None and not session.saves:
        raise ValueError(f"every is {every}, but must be None for a session without a folder; give it one, or "
                         "train(every=None, copy_every=...)")  # fmt: skip
    if copy_every is not None and not session.copies:
        raise ValueError(f"copy_every is {copy_every}, but must be None for a {type(session).__name__}, which makes no "
                         "copies; write checkpoints")  # fmt: skip
