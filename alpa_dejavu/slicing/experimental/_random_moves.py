"""Plans drawn at random, and plans a random move away from one."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem, StageChoice

Use = tuple[int, ...]
"""Devices of each kind of host."""
MOST_STEPS = 300
"""A draw is given up after so many submeshes that were tried, besides all of them once for each that is drawn."""


@final
class Fill:
    """A sampler of random submeshes that together use up a cluster's devices; it remembers which draws can't be
    completed.

    `uses` is how many devices each submesh takes of each kind of host; if `exactly`, all devices have to be used.
    """

    def __init__(self, uses: Sequence[Use], exactly: bool, rng: random.Random) -> None:
        self._uses, self._exactly, self._rng = tuple(uses), exactly, rng
        sizes = [sum(use) for use in uses]
        self._smallest, self._largest = min(sizes), max(sizes)
        self._alike: dict[Use, list[int]] = {}
        for submesh, use in enumerate(uses):
            self._alike.setdefault(use, []).append(submesh)
        self._dead: set[tuple[int, Use]] = set()
        self._steps = 0

    def draw(self, count: int, available: Use) -> list[int]:
        """Returns `count` random submeshes, shuffled, that use all available devices of each kind, or at most these; []
        if none are found.
        """
        self._steps = MOST_STEPS + count * len(self._uses)
        drawn = self._rest(count, available)
        self._rng.shuffle(drawn)
        return drawn

    def _rest(self, count: int, left: Use) -> list[int]:
        devices = sum(left)
        if devices < count * self._smallest or (self._exactly and devices > count * self._largest):
            return []
        if count == 1 and self._exactly:
            return [self._rng.choice(self._alike[left])] if left in self._alike else []
        if (count, left) in self._dead:
            return []
        for submesh in self._rng.sample(range(len(self._uses)), len(self._uses)):
            self._steps -= 1
            after = tuple(have - use for have, use in zip(left, self._uses[submesh], strict=True))
            if min(after) < 0:
                continue
            if count == 1:
                return [submesh]
            rest = self._rest(count - 1, after)
            if rest:
                return [submesh, *rest]
            if self._steps < 0:
                return []
        self._dead.add((count, left))
        return []


Stages = tuple[StageChoice, ...]

CUT, CONFIG, SWAP = 0.35, 0.15, 0.15
"""How often a boundary moves, a config changes, and two stages swap their submeshes; else some stages are made anew."""
MOST_REMADE = 3
"""At most so many neighbours are made anew at a time."""


@final
class RandomMoves:
    """A generator of random plans of one slicing problem, and of random changes to plans, as simulated annealing needs
    them.

    Each plan covers the layers and takes the devices that it should. A stage's cost may be infinite, where no config is
    offered for it.
    """

    def __init__(self, problem: SlicingProblem, rng: random.Random) -> None:
        self._problem, self._rng = problem, rng
        sites = problem.sites
        uses = problem.submesh_sizes[:, None] if sites is None else sites.uses
        self._uses: list[Use] = [tuple(row) for row in uses.tolist()]
        self._available: Use = (problem.num_devices,) if sites is None else tuple(sites.available.tolist())
        self._fill = Fill(self._uses, problem.devices == "exactly", rng)
        self._offered: dict[tuple[int, int, int], list[int]] = {}

    def plan(self) -> Stages:
        """Returns a random plan of any number of stages, cut anywhere, on any submeshes; () if none was found."""
        problem, rng = self._problem, self._rng
        most = min(problem.num_layers, problem.num_devices // int(problem.submesh_sizes.min()))
        counts = range(1, most + 1) if problem.num_stages is None else range(problem.num_stages, problem.num_stages + 1)
        for count in rng.sample(counts, len(counts)):
            submeshes = self._fill.draw(count, self._available) if count <= most else []
            if submeshes:
                return self._made(0, problem.num_layers, submeshes)
        return ()

    def moved(self, stages: Stages) -> Stages:
        """Returns a plan after one random move: of a cut, of a stage's config, of two stages' submeshes, or of a few
        neighbouring stages that are drawn anew; the same plan if that move can't be made.
        """
        kind, several = self._rng.random(), len(stages) > 1
        if kind < CUT and several:
            return self._cut(stages)
        if CUT <= kind < CUT + CONFIG and self._problem.costs_s.shape[3] > 1:
            return self._reconfigured(stages)
        if CUT + CONFIG <= kind < CUT + CONFIG + SWAP and several:
            return self._swapped(stages)
        return self._remade(stages)

    def violations(self, stages: Stages) -> int:
        """Returns how far a plan breaks a problem's rules: how many of its stages aren't offered at a finite cost, plus
        for each stage by how many stages too many follow it for its memory.
        """
        costs, limits = self._problem.costs_s, self._problem.max_n_succ_stages
        total = 0
        for n, stage in enumerate(stages):
            total += not math.isfinite(costs[stage.entry])
            if limits is not None:
                total += max(len(stages) - 1 - n - int(limits[stage.entry]), 0)
        return total

    def _cut(self, stages: Stages) -> Stages:
        """Moves a boundary by one layer, or anywhere between its neighbours."""
        rng, n = self._rng, self._rng.randrange(1, len(stages))
        before, after = stages[n - 1], stages[n]
        low, high = before.first + 1, after.last
        cut = after.first + rng.choice((-1, 1)) if rng.random() < 0.5 else rng.randint(low, high)
        if not low <= cut <= high:
            return stages
        pair = self._kept(before, before.first, cut - 1), self._kept(after, cut, after.last)
        return (*stages[: n - 1], *pair, *stages[n + 1 :])

    def _reconfigured(self, stages: Stages) -> Stages:
        n = self._rng.randrange(len(stages))
        stage = stages[n]
        config = self._config(stage.first, stage.last, stage.submesh)
        return (*stages[:n], dataclasses.replace(stage, config=config), *stages[n + 1 :])

    def _swapped(self, stages: Stages) -> Stages:
        n, m = self._rng.sample(range(len(stages)), 2)
        changed = list(stages)
        for to, source in ((n, stages[m]), (m, stages[n])):
            changed[to] = self._kept(source, stages[to].first, stages[to].last)
        return tuple(changed)

    def _remade(self, stages: Stages) -> Stages:
        """Turns a few neighbours into as many, one more or one less, on other submeshes with the same devices."""
        rng, num = self._rng, len(stages)
        width = rng.randint(1, min(MOST_REMADE, num))
        start = rng.randrange(num - width + 1)
        window, kept = stages[start : start + width], (*stages[:start], *stages[start + width :])
        first, end = window[0].first, window[-1].last + 1
        used = [self._uses[stage.submesh] for stage in kept]
        left = tuple(have - sum(column) for have, *column in zip(self._available, *used, strict=True))
        count = width
        if self._problem.num_stages is None:
            count = rng.randint(max(width - 1, 1), min(width + 1, end - first))
        submeshes = self._fill.draw(count, left)
        if not submeshes:
            return stages
        cuts = [stage.first for stage in window[1:]] if count == width else None
        return (*stages[:start], *self._made(first, end, submeshes, cuts), *stages[start + width :])

    def _made(self, first: int, end: int, submeshes: Sequence[int], cuts: Sequence[int] | None = None) -> Stages:
        """Returns stages on these submeshes with any configs, cut at `cuts`, or anywhere."""
        if cuts is None:
            cuts = sorted(self._rng.sample(range(first + 1, end), len(submeshes) - 1))
        places = zip([first, *cuts], [*cuts, end], submeshes, strict=True)
        return tuple(StageChoice(a, b - 1, submesh, self._config(a, b - 1, submesh)) for a, b, submesh in places)

    def _kept(self, stage: StageChoice, first: int, last: int) -> StageChoice:
        """Returns these layers on the stage's submesh, with its config if that is offered."""
        if stage.config in self._configs(first, last, stage.submesh):
            return StageChoice(first, last, stage.submesh, stage.config)
        return StageChoice(first, last, stage.submesh, self._config(first, last, stage.submesh))

    def _config(self, first: int, last: int, submesh: int) -> int:
        """Returns a random config that is offered, or 0 if none is."""
        configs = self._configs(first, last, submesh)
        return self._rng.choice(configs) if configs else 0

    def _configs(self, first: int, last: int, submesh: int) -> list[int]:
        key = first, last, submesh
        if key not in self._offered:
            self._offered[key] = np.flatnonzero(np.isfinite(self._problem.costs_s[key])).tolist()
        return self._offered[key]
