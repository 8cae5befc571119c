"""Single FP32 kernels on GPUs (NeuSight): a GPU that was never seen, and a kind of kernel that was never seen."""

from __future__ import annotations

import operator
from functools import partial

import numpy as np
import pandas as pd

from alpa_dejavu.costs.latency.learned import KernelModel, Kernels, data_sheets
from trials._folder import Folder, UnreadableError, measured
from trials._trial_set import MEASURED_S, Context, Learned, TrialSet, labels

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


def _columns(rows: pd.DataFrame, context: Context) -> Kernels:
    return Kernels.of(rows, data_sheets(context.folder.document(_SHEETS)))


def _set(unseen: str, key: str, other: str) -> TrialSet:
    """The set whose groups are the values of a column."""
    predictor = partial(Learned, KernelModel, _columns, operator.itemgetter(unseen))
    return TrialSet(key, load, labels(unseen), predictor, features, same_rows_as=(other,))


_BY_GPU, _BY_OP = "neusight-kernels/kernels", "neusight-kernels/kernels:by_op"
SETS = (_set("gpu", _BY_GPU, _BY_OP), _set("op", _BY_OP, _BY_GPU))
