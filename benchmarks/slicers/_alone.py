"""`dynamic` on large problems: time, memory, and whether the answer is exact."""

from __future__ import annotations

from tqdm import tqdm

from slicers._cold import alone
from slicers._figure import Figure, Part, Scale

AIMS = {"64/512": (1.0, None), "64/512 noisy": (1.0, None), "256/4096": (30.0, 4.0)}
"""By layers and devices: seconds, and GiB."""
GAP = 1e-3


def measured(scale: Scale) -> Part:
    """Each in a process of its own, compiled beforehand."""
    figures, rows = [], []
    for name in tqdm(scale.alone, "alone"):
        one = alone(name)
        found, gib = one.answer, one.most_bytes / 2**30
        most_s, most_gib = AIMS.get(name, (1.0, None))
        said = f"{one.seconds:.3g} s ({one.cpu_s:.3g} s of one core)"
        figures.append(Figure("dynamic", name, f"under {most_s:g} s", said, one.seconds < most_s))
        if most_gib is not None:
            figures.append(Figure("dynamic", name, f"under {most_gib:g} GiB", f"{gib:.2f} GiB", gib < most_gib))
        said = "exact" if found.gap == 0 else f"gap {100 * found.gap:.2g} %"
        figures.append(Figure("dynamic", name, f"exact, or a gap under {100 * GAP:g} %", said, found.gap < GAP))
        rows.append(
            {"problem": name, "seconds": one.seconds, "cpu_s": one.cpu_s, "most_bytes": one.most_bytes}
            | {"cost_s": found.cost_s, "gap": found.gap, "stages": len(found.stages), "rounds": found.iterations}
        )
    return Part(tuple(figures), {"sizes": rows})
