"""Files of results: one that a release has written is read, and what was read is written as the same bytes."""

import pathlib

import numpy as np

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
