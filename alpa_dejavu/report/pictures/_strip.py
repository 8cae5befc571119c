"""A row of heat maps: how something came about."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.report.pictures._svg import INK, box, line, picture, text

_HEIGHT, _LEFT, _TOP, _BOTTOM, _BETWEEN = 200, 46, 66, 40, 14
_WIDTH = 940
_DARKEST = np.array([0x1F, 0x3A, 0x93])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """A heat map.

    Attributes:
        name: above it.
        values: shape (rows, columns), from 0 (white) to 1 (dark).

    Raises ValueError for another shape, or values outside.
    """

    name: str
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.asarray(self.values, dtype=np.float64))
        if self.values.ndim != 2 or 0 in self.values.shape:
            raise ValueError(f"frame {self.name!r}: values is {self.values.shape}, not (rows, columns)")
        if not ((self.values >= -1e-6) & (self.values <= 1 + 1e-6)).all():
            ends = f"values go from {self.values.min()} to {self.values.max()}"
            raise ValueError(f"frame {self.name!r}: {ends}, not 0 to 1")


def strip(title: str, across: str, up: str, frames: Sequence[Frame]) -> str:
    """A picture of heat maps side by side, the first row on top.

    Args:
        title: above them.
        across: what columns are.
        up: what rows are.
        frames: in their order; all of one shape.

    Returns:
        SVG text.

    Raises:
        ValueError: there are no frames, or they have several shapes.
    """
    shapes = sorted({frame.values.shape for frame in frames})
    if len(shapes) != 1:
        raise ValueError(f"{title}: frames have the shapes {shapes}; give at least one, all of one shape")
    rows, columns = shapes[0]
    width = (_WIDTH - _LEFT - 10 + _BETWEEN) / len(frames) - _BETWEEN
    elements = [text(16, _TOP + _HEIGHT / 2, up, "middle", turned=True)]
    elements += [text(_LEFT - 6, _TOP + 10, "1", "end"), text(_LEFT - 6, _TOP + _HEIGHT, str(rows), "end")]
    for n, frame in enumerate(frames):
        left = _LEFT + n * (width + _BETWEEN)
        elements.append(text(left + width / 2, _TOP - 8, frame.name, "middle", size=11))
        # Rows are few and columns may be many: what is white needs no box, as the ground is.
        for row, column in np.argwhere(frame.values >= 0.02).tolist():
            place = left + column * width / columns, _TOP + row * _HEIGHT / rows
            colour = _colour(float(frame.values[row, column]))
            elements.append(box(*place, width / columns, _HEIGHT / rows, colour))
        right, bottom = left + width, _TOP + _HEIGHT
        elements.append(line([(left, _TOP), (right, _TOP), (right, bottom), (left, bottom), (left, _TOP)], INK))
    elements.append(text(_LEFT + (_WIDTH - _LEFT) / 2, _TOP + _HEIGHT + 24, across, "middle"))
    return picture(_WIDTH, _TOP + _HEIGHT + _BOTTOM, title, elements)


def _colour(value: float) -> str:
    """Between white and the darkest.

    >>> _colour(0.0), _colour(1.0)
    ('#ffffff', '#1f3a93')
    """
    mixed = np.rint(255 + (_DARKEST - 255) * min(max(value, 0.0), 1.0)).astype(int)
    return "#" + "".join(f"{part:02x}" for part in mixed.tolist())
