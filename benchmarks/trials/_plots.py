"""Predicted against measured, a page for each set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from trials._run import Scored
from trials._trial_set import MEASURED_S

_MOST_POINTS = 6000


def draw(folder: Path, key: str, scored: Scored) -> Path:
    """Writes the picture of a set and returns its file: a point for each row, coloured by group, with its interval."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = scored.rows[MEASURED_S].to_numpy(float)
    chosen = np.sort(np.random.default_rng(0).permutation(len(measured))[:_MOST_POINTS])
    figure = go.Figure()
    for group in sorted(scored.groups.unique()):
        of_group = chosen[(scored.groups == group).to_numpy()[chosen]]
        mean = scored.predicted.mean[of_group]
        figure.add_scattergl(
            x=measured[of_group],
            y=mean,
            mode="markers",
            marker={"size": 4},
            name=group,
            error_y={
                "array": np.maximum(scored.predicted.upper[of_group] - mean, 0),
                "arrayminus": np.maximum(mean - scored.predicted.lower[of_group], 0),
                "thickness": 0.4,
                "width": 0,
            },
        )
    ends = [measured.min(), measured.max()]
    figure.add_scattergl(x=ends, y=ends, mode="lines", line={"color": "black", "width": 1}, name="measured")
    result = scored.result
    figure.update_layout(
        title=f"{key}: MAPE {result['mape']:.1%}; the 90 % interval holds {result['coverage_90']:.1%}",
        xaxis={"title": "measured, s", "type": "log"},
        yaxis={"title": "predicted, s", "type": "log"},
    )
    path = folder / (key.replace("/", "-").replace(":", "-") + ".html")
    figure.write_html(path, include_plotlyjs="directory")
    return path
