"""Predicted against measured, a page for each set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from trials._run import Scored
from trials._trial_set import MEASURED_S


def draw(folder: Path, key: str, scored: Scored) -> Path:
    """Writes the picture of a set and returns its file: a point for each row, with its interval."""
    folder.mkdir(parents=True, exist_ok=True)
    measured, predicted = scored.rows[MEASURED_S].to_numpy(float), scored.predicted
    ends = {
        "array": np.maximum(predicted.upper - predicted.mean, 0),
        "arrayminus": np.maximum(predicted.mean - predicted.lower, 0), "thickness": 0.4, "width": 0,
    }  # fmt: skip
    figure = go.Figure()
    figure.add_scattergl(
        x=measured, y=predicted.mean, mode="markers", marker={"size": 4}, name="predicted", error_y=ends
    )
    line = [measured.min(), measured.max()]
    figure.add_scattergl(x=line, y=line, mode="lines", line={"color": "black", "width": 1}, name="measured")
    result = scored.result
    figure.update_layout(
        title=f"{key}: MAPE {result['mape']:.1%}; the 90 % interval holds {result['coverage_90']:.1%}",
        xaxis={"title": "measured, s", "type": "log"},
        yaxis={"title": "predicted, s", "type": "log"},
    )
    path = folder / (key.replace("/", "-").replace(":", "-") + ".html")
    figure.write_html(path, include_plotlyjs="directory")
    return path
