"""Fresh variables are distinct and short, whatever jaxprs Alpa passes."""
import jax
import jax.numpy as jnp
from alpa.pipeline_parallel import computation, layer_construction, stage_profiling
from jax.core import ShapedArray


def test_fresh_variables_carry_no_jaxpr():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0).jaxpr
    aval = ShapedArray((2,), jnp.float32)
    for module in (computation, layer_construction, stage_profiling):
        fresh = module.gensym([jaxpr])
        first, second = fresh(aval), fresh(aval)
        assert first.suffix == ""
        assert first.aval == aval
        assert len({first, second, *jaxpr.invars, *jaxpr.outvars}) == 4
