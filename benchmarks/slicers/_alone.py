"""`dynamic` on large problems: time, memory, and whether the answer is exact."""

from __future__ import annotations

from tqdm import tqdm

from alpa_dejavu._util import units
from slicers._cold import alone
from slicers._figure import Figure, Part, Scale

AIMS = {"64/512": (1.0, None), "64/512 noisy": (1.0, None), "256/4096": (30.0, 4 * 2.0**30)}
"""By layers and devices: seconds, and bytes."""
GAP = 1e-3


def measured(scale: Scale) -> Part:
    """Each in a process of its own, compiled beforehand."""
    figures, rows = [], []
    for name in tqdm(scale.alone, "alone"):
        one = alone(name)
        found = one.answer
        most_s, most_bytes = AIMS.get(name, (1.0, None))
        said = f"{units.seconds(one.seconds)} ({units.seconds(one.cpu_s)} of one core)"
        figures.append(Figure("dynamic", name, f"under {units.seconds(most_s)}", said, one.seconds < most_s))
        if most_bytes is not None:
            aim, taken = f"under {units.size(most_bytes)}", units.size(one.most_bytes)
            figures.append(Figure("dynamic", name, aim, taken, one.most_bytes < most_bytes))
        said = "exact" if found.gap == 0 else f"gap {100 * found.gap:.2g} %"
        figures.append(Figure("dynamic", name, f"exact, or a gap under {100 * GAP:g} %", said, found.gap < GAP))
        rows.append(
            {"problem": name, "seconds": one.seconds, "cpu_s": one.cpu_s, "most_bytes": one.most_bytes}
            | {"cost_s": found.cost_s, "gap": found.gap, "stages": len(found.stages), "rounds": found.iterations}
        )
    return Part(tuple(figures), {"sizes": rows})
