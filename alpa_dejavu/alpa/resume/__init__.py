"""Training that goes on when a host, a device or memory is lost: another plan, the last checkpoint, and no person.

    session = AlpaSession(step, state, batch, folder)
    trained = train(session, plan, steps=1000)

The program that trains must be on a host that stays: with its own host it ends, too.
"""

from alpa_dejavu.alpa.resume._alpa_session import AlpaSession
from alpa_dejavu.alpa.resume._loop import WallClock
from alpa_dejavu.alpa.resume._session import Change, HostsLostError, Recovery, Session, Trained
from alpa_dejavu.alpa.resume._train import train

__all__ = ["AlpaSession", "Change", "HostsLostError", "Recovery", "Session", "Trained", "WallClock", "train"]
