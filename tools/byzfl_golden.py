"""Writes what ByzFL makes of some gradients, by which tests judge our rules.

    pip install '.[byzfl]' && python tools/byzfl_golden.py tests/training/robust/data/byzfl.json

It imports PyTorch, so it runs by hand in an environment of its own; `make test` reads the file.

References:
    Gonzalez, Guerraoui, Pinot, Rizk, Stephan and Taiani, ByzFL: Research Framework for Robust Federated Learning, 2025.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path

import numpy as np

SIZES = ((7, 6, 2), (10, 12, 3), (11, 5, 4))
"""Replicas, coordinates, and how many of the replicas are wrong."""


def main() -> None:
    """Writes the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path, help="the JSON file to write")
    into = parser.parse_args().into
    cases = [_case(number, *size) for number, size in enumerate(SIZES)]
    made = {"format": "byzfl-golden", "version": 1, "byzfl": importlib.metadata.version("byzfl"), "cases": cases}
    into.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def _case(seed: int, replicas: int, coordinates: int, wrong: int) -> dict[str, object]:
    import byzfl

    draw = np.random.default_rng(seed)
    gradients = 1 + draw.standard_normal((replicas, coordinates))
    gradients[:wrong] = -3 * gradients[:wrong] + 5
    rules = {
        "mean": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(wrong),
        "geometric-median": byzfl.GeometricMedian(nu=0.1, T=5),
        "krum": byzfl.Krum(wrong),
        "multi-krum": byzfl.MultiKrum(wrong),
        "centered-clipping": byzfl.CenteredClipping(L=3, tau=2.0),
        "mda": byzfl.MDA(wrong),
        "meamed": byzfl.Meamed(wrong),
    }
    before = {"nearest-neighbours": byzfl.NNM(wrong), "clipping": byzfl.Clipping(2.0)}
    right = gradients[wrong:]
    attacks = {
        "inner-product": byzfl.InnerProductManipulation(tau=0.7),
        "a-little-is-enough": byzfl.ALittleIsEnough(tau=1.5),
        "mimic": byzfl.Mimic(0),
    }
    return {
        "wrong": wrong,
        "gradients": gradients.tolist(),
        "rules": {name: np.asarray(rule(gradients.copy())).tolist() for name, rule in rules.items()},
        "before": {name: np.asarray(one(gradients.copy())).tolist() for name, one in before.items()},
        "attacks": {name: np.asarray(attack(right.copy())).tolist() for name, attack in attacks.items()},
    }


if __name__ == "__main__":
    main()
