"""A chosen state on the devices of a step that Alpa parallelizes over four devices of this process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.alpa.into_alpa import placed, spare_workers
from alpa_dejavu.training.initialization import parallel_initialize
from small_models import regression


class Chosen:
    """A state, the step on one device, and the same step by Alpa."""

    def __init__(self):
        import alpa
        from alpa.device_mesh import LocalPhysicalDeviceMesh

        init_fn, train_step, batches = regression(says_norm=False)
        self.state = parallel_initialize(init_fn, train_step, batches, num_candidates=2, budget_steps=16, lanes=1).state
        self.alone, self.batch = jax.jit(train_step), batches[0]
        method = alpa.Zero3Parallel(devices=LocalPhysicalDeviceMesh(jax.devices()[:4]))
        self.step = alpa.parallelize(train_step, method=method, donate_argnums=())
        like = jax.eval_shape(init_fn, jax.random.PRNGKey(0))
        self.executable = self.step.get_executable(like, self.batch)


@pytest.fixture(scope="module")
def chosen():
    return Chosen()


def test_the_first_step_of_a_placed_state_is_that_of_one_device(chosen):
    state = placed(chosen.state, chosen.executable)
    specs = jax.tree.leaves(chosen.executable.get_input_placement_specs()[0])
    for array, spec in zip(jax.tree.leaves(state), specs, strict=True):
        assert array.sharding_spec == spec.sharding_specs[0]
    after, loss = chosen.step(state, chosen.batch)
    expected, expected_loss = chosen.alone(chosen.state, chosen.batch)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    np.testing.assert_allclose(after["params"]["matrix"], expected["params"]["matrix"], rtol=1e-4, atol=1e-6)
    assert int(after["steps"]) == 17
    assert chosen.step.get_last_executable() is chosen.executable, "it isn't compiled again"


@pytest.mark.parametrize(("change", "said"), [
    ({"more": np.zeros(2)}, r"has 6 arrays and the step's 5, and \['more'\] is not in it"),
    ({"params": {"bias": np.zeros(2, np.float32)}}, r"4 arrays and the step's 5, and it has .*\['matrix'\], too"),
    ({"steps": np.zeros((3,), np.int32)}, r"\['steps'\] is int32\[3\], but the step takes int32\[\]"),
    ({"steps": np.float32(0)}, r"\['steps'\] is float32\[\], but the step takes int32\[\]; give the state"),
])  # fmt: skip
def test_a_state_of_another_model_is_refused(chosen, change, said):
    with pytest.raises(ValueError, match=said):
        placed({**chosen.state, **change}, chosen.executable)


def test_functions_of_a_state_are_those_that_the_step_was_compiled_with():
    class Unread:
        """Of a step that reads one array of three, compiled with another optimizer's name."""

        in_tree = jax.tree.structure((Named("ours", 0, 0, 0),))

        class physical_mesh:
            @staticmethod
            def shard_args_to_arrays_ps(specs, arrays):
                return [("sent", array.tolist()) for array in arrays]

        def get_input_placement_specs(self):
            return self.in_tree.unflatten([None, Spec(), None])

    state = placed(Named("theirs", np.arange(2.0), np.ones(2, np.float32), np.arange(3)), Unread())
    assert state.name == "ours"
    assert state.b == ("sent", [1.0, 1.0])
    assert state.a.tolist() == [0.0, 1.0]


class Spec:
    aval = jax.core.ShapedArray((2,), np.float32)


@jax.tree_util.register_pytree_with_keys_class
class Named:
    def __init__(self, name, a, b, c):
        self.name, self.a, self.b, self.c = name, a, b, c

    def tree_flatten_with_keys(self):
        return tuple((jax.tree_util.GetAttrKey(key), getattr(self, key)) for key in "abc"), self.name

    @classmethod
    def tree_unflatten(cls, name, leaves):
        return cls(name, *leaves)


def test_spare_workers_need_alpa_on_ray(example):
    with pytest.raises(RuntimeError, match=r'call alpa\.init\("ray"\) first'):
        spare_workers(example)


@pytest.fixture
def example():
    from alpa_dejavu.problem import Plan

    return Plan(stages=(), step_s=1.0, num_micro_batches=1, schedule="1f1b", cluster="none", planning_s={})


def test_a_step_without_a_state_is_refused(chosen):
    class Nothing:
        in_tree = jax.tree.structure(())

    with pytest.raises(ValueError, match="holds no array"):
        placed({"a": jnp.ones(2)}, Nothing())
