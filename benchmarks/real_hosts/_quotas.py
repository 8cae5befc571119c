"""Shares of a core for the processes of each host, by the CPU quotas of cgroups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

from alpa_dejavu._util.threads import usable_cores
from real_hosts._leftovers import is_leftover, own_name
from real_hosts._namespaces import NotShownError

__all__ = ["Quotas", "quotas"]

_PERIOD_US, _LEAST_US = 10000, 1000
"""Short, so that a computation is slowed down evenly, not run at full speed and then stopped; the least that Linux
takes for a quota.
"""
_SHARES, _WEIGHT = 1024, 100
"""The weight of a group beside all else that runs, by default, in the first and in the second version of cgroups."""
_FIRST = 100
"""So many times the default have groups with a quota, so that what else runs takes little of their shares."""
_LEAST_SHARE = _LEAST_US / _PERIOD_US
"""The least share of a core that a host can be given."""
_ONE = Path("/sys/fs/cgroup/cpu")
_TWO = Path("/sys/fs/cgroup")


@final
class Quotas:
    """A group of processes for each host; without a limit until `limit` sets one."""

    def __init__(self, groups: Sequence[Path]) -> None:
        self._groups = tuple(groups)

    def put(self, host: int, pids: Iterable[int]) -> None:
        """Puts processes, with all their threads, into a host's group."""
        for pid in pids:
            (self._groups[host] / "cgroup.procs").write_text(str(pid))

    def limit(self, shares: Sequence[float] | None) -> None:
        """Gives each host a share of a core from now on, before all else that runs; None: as much as it can get.

        Raises:
            ValueError: the shares add up to the machine's cores or more, so that hosts would slow each other down, or
                one is too small.
        """
        cores = usable_cores()
        if shares is not None and not (min(shares) > 0 and sum(shares) < cores):
            raise ValueError(f"the shares {list(shares)} must be positive, and below the {cores} cores together")
        if shares is not None and min(shares) < _LEAST_SHARE:
            raise ValueError(f"the share {min(shares)} is too small; give {_LEAST_SHARE} of a core at least")
        for n, group in enumerate(self._groups):
            quota = None if shares is None else round(shares[n] * _PERIOD_US)
            times = 1 if shares is None else _FIRST
            if _version(group) == 1:
                (group / "cpu.shares").write_text(str(times * _SHARES))
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
            else:
                (group / "cpu.weight").write_text(str(times * _WEIGHT))
                (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")


@contextlib.contextmanager
def quotas(num_hosts: int) -> Iterator[Quotas]:
    """Makes groups for so many hosts, which are removed at the end.

    Raises:
        NotShownError: groups with CPU quotas can't be made here.
    """
    root = _root()
    _remove(root, leftovers=True)
    groups = [root / own_name(str(n)) for n in range(num_hosts)]
    try:
        for group in groups:
            try:
                group.mkdir()
            except OSError as error:
                raise NotShownError(f"no CPU quotas: {error}") from None
        yield Quotas(groups)
    finally:
        _remove(root, leftovers=False)


def _root() -> Path:
    if (_ONE / "cpu.cfs_quota_us").exists() or (_ONE / "cpu.shares").exists():
        return _ONE
    control = _TWO / "cgroup.subtree_control"
    if not control.exists() or "cpu" not in control.read_text().split():
        raise NotShownError(f"no CPU quotas: neither {_ONE} nor the cpu controller in {control} is there")
    return _TWO


def _version(group: Path) -> int:
    return 1 if group.parent == _ONE else 2


def _remove(root: Path, leftovers: bool) -> None:
    """Removes groups whose processes are gone; processes that are still there go back to where all others are."""
    mine = own_name("")
    for group in root.glob("alpadj-*"):
        if is_leftover(group.name) if leftovers else group.name.startswith(mine):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (root / "cgroup.procs").write_text(pid)
            group.rmdir()
