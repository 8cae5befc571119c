"""Alpa finds in jax what it imports from it, and what stock jax had stays what it was."""
import jax

from alpa_stock_jax._frozen_dict import FrozenDict


def test_moved_modules_can_be_imported():
    import jax._src.lib.xla_bridge
    import jax.abstract_arrays
    import jax.linear_util
    from jax.experimental.maps import FrozenDict as found

    assert found is FrozenDict
    assert jax.linear_util.wrap_init is not None
    assert jax._src.lib.xla_bridge.get_backend is jax._src.xla_bridge.get_backend
    assert jax.numpy.ndarray in (jax.Array, jax.numpy.ndarray)


def test_a_frozen_dictionary_is_a_leaf_to_jax():
    assert jax.tree_util.tree_leaves(FrozenDict(a=1)) == [FrozenDict(a=1)]
