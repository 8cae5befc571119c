"""Checkpoints as they lie on disk."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from alpa import serialization

from alpa_stock_jax import ray_checkpoint
from every_dtype import JAX_DTYPES


def _save_part(folder, host, array, index, whole_shape):
    np.save(folder / f"shard_{host}.0", array)
    (folder / f"shard_{host}.0.npy").rename(folder / f"shard_{host}.0")
    metadata = {
        "global_shape": whole_shape,
        "dtype": array.dtype,
        "shard_names": [f"shard_{host}.0"],
        "shard_indices": [index],
    }
    (folder / f"metadata_{host}").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("dtype", JAX_DTYPES, ids=str)
def test_parts_of_two_hosts_make_one_array(tmp_path, dtype):
    whole = (np.arange(8).reshape(4, 2) % 4).astype(dtype)
    for host in range(2):
        rows = slice(2 * host, 2 * host + 2)
        _save_part(tmp_path, host, whole[rows], (rows, slice(None)), whole.shape)
    loaded = ray_checkpoint.load_sharded_array(str(tmp_path), ["metadata_0", "metadata_1"])
    assert loaded.dtype == whole.dtype
    np.testing.assert_array_equal(loaded, whole)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e5m2, jnp.int4])
def test_an_unsharded_array_comes_back_and_older_parts_are_forgotten(tmp_path, dtype):
    _save_part(tmp_path, 1, np.zeros(2, np.float32), (slice(0, 2),), (4,))
    array = jnp.asarray(np.arange(4).astype(dtype))
    serialization._save_unsharded_array(str(tmp_path), array)
    assert sorted(path.name for path in tmp_path.glob("metadata_*")) == ["metadata_0"]
    loaded = serialization.load_sharded_array(str(tmp_path), ["metadata_0"])
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, np.asarray(array))


def test_nothing_else_is_unpickled(tmp_path):
    (tmp_path / "metadata_0").write_bytes(pickle.dumps({"shard_names": pytest.fail}))
    with pytest.raises(pickle.UnpicklingError):
        ray_checkpoint.load_sharded_array(str(tmp_path), ["metadata_0"])


def test_a_folder_without_an_array_is_told():
    with pytest.raises(FileNotFoundError, match="nowhere has no metadata"):
        ray_checkpoint.load_sharded_array("nowhere", [])
