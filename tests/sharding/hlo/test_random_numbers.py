"""Random numbers follow the seed, differ between partitions and are of the distribution that is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.monkey_patch import rng_normal
from jax._src.lib import xla_client as xc

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_dejavu.sharding.hlo.random import seed_random_numbers
from alpa_stock_jax._mlir_module import manual_module
from alpa_stock_jax.lowering import lower

SHAPE = (64, 256)


def _module(function):
    jaxpr = jax.make_jaxpr(function)()
    return HloModuleProto.FromString(lower("module", jaxpr, [], "cpu").as_serialized_hlo_module_proto())


def _draw(function, seeds):
    client = jax.devices()[0].client
    executable = client.compile(manual_module(seed_random_numbers(_module(function), False), False))
    return [
        [np.asarray(one, np.float64) for one in executable.execute([client.buffer_from_pyval(np.uint64(seed))])]
        for seed in seeds
    ]


def _uniform(dtype):
    return jax.lax.rng_uniform(jnp.array(2, dtype), jnp.array(4, dtype), SHAPE)


def _normal(dtype):
    return rng_normal(jnp.array(1, dtype), jnp.array(3, dtype), SHAPE)


@pytest.mark.parametrize("draw", [_uniform, _normal])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_seed_repeats_the_numbers_and_another_does_not(draw, dtype):
    (first,), (second,), (third,) = _draw(lambda: draw(dtype), (5, 5, 6))
    np.testing.assert_array_equal(first, second)
    assert np.mean(first == third) < 0.1


def test_two_draws_of_one_program_differ():
    ((first, second),) = _draw(lambda: (_uniform("float32"), _uniform("float32")), (1,))
    assert np.mean(first == second) < 0.01


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_uniform_numbers_fill_their_interval(dtype):
    ((drawn,),) = _draw(lambda: _uniform(dtype), (3,))
    counts, _ = np.histogram(drawn, bins=8, range=(2, 4))
    assert drawn.min() >= 2
    assert drawn.max() <= 4
    assert np.all(np.abs(counts / drawn.size - 1 / 8) < 0.015)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normal_numbers_have_their_moments(dtype):
    drawn = np.array(_draw(lambda: _normal(dtype), range(8)))
    standard = (drawn - 1) / 3
    moments = [np.mean(standard**power) for power in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, (0, 1, 0, 3), atol=0.12)
    assert np.all(np.isfinite(drawn))


def test_a_program_without_random_numbers_is_left_alone():
    assert seed_random_numbers(_module(lambda: jnp.ones(3)), True) is None


def test_random_integers_are_left_to_xla():
    assert seed_random_numbers(_module(lambda: jax.lax.rng_uniform(0, 9, (3,))), False) is None


def test_the_seed_is_the_last_parameter():
    module = seed_random_numbers(_module(lambda: _uniform("float32")), True)
    text = xc.XlaComputation(module.SerializeToString()).as_hlo_text()
    assert "{(u64[])->" in text
    assert "partition-id" in text
    assert " rng(" not in text
