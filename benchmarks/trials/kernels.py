"""Single FP32 kernels on GPUs (NeuSight): a GPU that was never seen, and a kind of kernel that was never seen."""

from __future__ import annotations

from typing import final

import numpy as np
import pandas as pd

from alpa_dejavu.costs.latency._kernel_model import KernelModel
from alpa_dejavu.costs.latency._kernels import Kernels
from alpa_dejavu.costs.latency._sheets import data_sheets
from trials._folder import Folder, UnreadableError, measured
from trials._trial_set import MEASURED_S, Context, Predicted, TrialSet, labels

_SHEETS = "neusight-kernels/gpus.json"
_ROWS = "neusight-kernels/kernels.csv"


def load(folder: Folder) -> pd.DataFrame:
    """The measured kernels of a folder."""
    sizes = ["batch", "m", "n", "k"]
    rows = folder.table(_ROWS, ["op", "gpu"], [*sizes, "latency_s"], counts=sizes)
    return measured(rows, ["latency_s"], _ROWS).rename(columns={"latency_s": MEASURED_S})


def features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """Work, bytes and shape of each kernel, and the roofline's two sides on its GPU's data sheet."""
    sheets = context.folder.document(_SHEETS)
    unknown = sorted(set(rows["gpu"]) - set(sheets))
    if unknown:
        raise UnreadableError(f"{_SHEETS}: has no data sheet of {unknown[0]!r}, which has kernels; add it")
    sheet = pd.DataFrame([sheets[gpu] for gpu in rows["gpu"]], index=rows.index)
    batch, m, n, k = (rows[name] for name in ("batch", "m", "n", "k"))
    product = rows["op"].isin(["linear", "bmm"])
    flop = np.where(product, 2 * batch * m * n * k, batch * n)
    moved = np.where(product, batch * (m * k + k * n + m * n), 2 * batch * n) * 4
    return pd.DataFrame(
        {
            "compute_s": flop / sheet["fp32_flop_per_s"],
            "traffic_s": moved / sheet["memory_bandwidth_bytes_per_s"],
            "flop": flop,
            "moved_bytes": moved,
            "batch": batch,
            "m": m,
            "n": n,
            "k": k,
            "num_sm": sheet["num_sm"],
            "l2_cache_bytes": sheet["l2_cache_bytes"],
            **{f"is_{op}": (rows["op"] == op).astype(float) for op in _OPS},
        }
    )


_OPS = ("linear", "bmm", "add", "mul", "gelu", "relu", "tanh", "softmax", "ln")


@final
class LearnedKernels:
    """The learned model; `unseen` is the column whose values it must hold for without having seen them."""

    def __init__(self, unseen: str) -> None:
        self._unseen = unseen

    def fit(self, rows: pd.DataFrame, context: Context) -> LearnedKernels:
        """Fits on the kernels alone."""
        self._sheets = data_sheets(context.folder.document(_SHEETS))
        self.model = KernelModel().fit(Kernels.of(rows, self._sheets), rows[MEASURED_S], rows[self._unseen])
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of each kernel."""
        seconds = self.model.predict(Kernels.of(rows, self._sheets))
        return Predicted(seconds.mean, seconds.lower, seconds.upper)


SETS = (
    TrialSet(
        "neusight-kernels/kernels",
        load,
        labels("gpu"),
        lambda: LearnedKernels("gpu"),
        features,
        same_rows_as=("neusight-kernels/kernels:by_op",),
    ),
    TrialSet(
        "neusight-kernels/kernels:by_op",
        load,
        labels("op"),
        lambda: LearnedKernels("op"),
        features,
        same_rows_as=("neusight-kernels/kernels",),
    ),
)
