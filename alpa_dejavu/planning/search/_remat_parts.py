"""Shares of blocks that are computed again, where memory does for those of some, but not of all or none."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from alpa_dejavu.problem import MeshConfig, SearchSpace

_MORE = 16
"""Beside the least number of blocks one that is larger by a sixteenth of a stage's blocks is offered where there are
several stages: some may have more blocks than others."""


def with_parts(
    space: SearchSpace, num_blocks: int, stages: Callable[[MeshConfig], int], fits: Callable[[MeshConfig], bool]
) -> SearchSpace:
    """Returns the space with configs by which a share of a stage's blocks is computed again beside those by which all
    are, where its blocks don't fit in memory if none is.

    Args:
        space: the search space; stages whose configs are alike in all but their hosts are families of their own.
        num_blocks: how many blocks the model has.
        stages: the number of stages of a plan with a config.
        fits: whether all blocks fit with a config.
    """
    offered = {config for row in space.configs for config in row if config is not None}
    parts = {
        config: _parts(config, num_blocks, stages(config), fits)
        for config in offered
        if config.remat == "layer" and fits(config) and (none := config.remat_ends[0]) in offered and not fits(none)
    }
    width = max((sum(len(parts.get(config, ())) for config in row if config) for row in space.configs), default=0)
    families: dict[tuple[frozenset[tuple[int, int]], float], set[tuple[int, int]]] = {}
    rows = []
    for s, row in enumerate(space.configs):
        more = [(c, part) for c, config in enumerate(row) if config for part in parts.get(config, ())]
        for place, (c, part) in enumerate(more, len(row)):
            for family in space.families:
                if (s, c) in family:
                    families.setdefault((family, part.remat_share), set()).add((s, place))
        rows.append((*row, *(part for _, part in more), *[None] * (width - len(more))))
    joined = (*space.families, *map(frozenset, families.values()))
    return dataclasses.replace(space, configs=tuple(rows), families=joined)


def _parts(whole: MeshConfig, num_blocks: int, stages: int, fits: Callable[[MeshConfig], bool]) -> list[MeshConfig]:
    blocks = -(-num_blocks // stages)

    def part(number: int) -> MeshConfig:
        return dataclasses.replace(whole, remat_share=number / blocks)

    least = 1 + bisect.bisect_left(range(1, blocks), True, key=lambda number: fits(part(number)))
    numbers = (least, least + max(blocks // _MORE, 1)) if stages > 1 else (least,)
    return [part(number) for number in numbers if number < blocks]
