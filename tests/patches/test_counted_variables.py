"""Variables with and without a number."""
import jax.numpy as jnp
from jax.core import ShapedArray, Var


def test_a_number_may_come_first():
    aval = ShapedArray((2, 3), jnp.float32)
    old, new = Var(0, "", aval), Var("", aval)
    assert old.aval == new.aval == aval
    assert old.suffix == new.suffix == ""
    assert old is not new
    assert old.count != new.count
