"""Files of results: one that a release has written is read, and what was read is written as the same bytes."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from alpa_dejavu.training.initialization import read_result
from alpa_dejavu.training.initialization._result_file import write_result
from small_models import regression

GOLDEN = pathlib.Path(__file__).parent / "data" / "initialization-1.json"


def test_the_golden_file_is_what_is_written(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    path = write_result(read_result(GOLDEN, like), tmp_path / GOLDEN.name)
    assert path.read_bytes() == GOLDEN.read_bytes()
    (state,) = tmp_path.glob("*.npz")
    with np.load(state) as again, np.load(GOLDEN.with_name(state.name)) as golden:
        assert set(again) == set(golden)
        assert all((again[name] == golden[name]).all() for name in golden)


def test_methods_are_kept_and_what_releases_before_wrote_is_checked(tmp_path):
    import jax

    like = jax.eval_shape(regression()[0], jax.random.PRNGKey(0))
    golden = read_result(GOLDEN, like)
    first, *rest = golden.curves
    carrying = dataclasses.replace(first, method="sobol")
    path = write_result(dataclasses.replace(golden, curves=(carrying, *rest)), tmp_path / "result.json")
    assert [curve.method for curve in read_result(path, like).curves[:2]] == ["sobol", ""]
    data = json.loads(path.read_text(encoding="utf-8"))
    data["candidates"][0]["rate"] = -1
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match="rate is -1"):
        read_result(path, like)
