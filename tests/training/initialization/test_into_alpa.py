"""The best of candidates goes into Alpa."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.alpa.into_alpa import placed, spare_workers
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.problem import Plan, StagePlan, Submesh
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


SIZE, STEPS = 16, 2


def model():
    """Its functions are closures, so that Ray sends them by value."""
    size = SIZE
    batches = np.random.default_rng(1).standard_normal((4, 8, size)).astype(np.float32)

    def init_fn(key):
        keys = jax.random.split(key, 4)
        return [jax.random.normal(each, (size, size)) / size**0.5 for each in keys]

    def make_step(value_and_grad):
        def step(weights, batch):
            def loss(weights):
                made = batch
                for weight in weights:
                    made = jnp.tanh(made @ weight)
                return jnp.mean((made - batch) ** 2)

            value, gradients = value_and_grad(loss)(weights)
            return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

        return step

    return init_fn, make_step, batches


def plan_on(host):
    """Two stages of one device each, both on one host."""
    stages = tuple(
        StagePlan((n, n), Submesh(1, 1), (1, 1), (host,), compute_s=1.0, memory_bytes=1e6, memory_limit_bytes=1e9)
        for n in range(2)
    )
    return Plan(
        stages=stages, step_s=1.0, num_micro_batches=2, schedule="1f1b", cluster="CPU cluster of 2 x 2", planning_s={}
    )


@pytest.mark.ray
@pytest.mark.slow
def test_a_pipeline_goes_on_from_the_best_of_candidates_on_its_spare_devices(tmp_path):
    init_fn, make_step, batches = model()
    driver = os.getpid()

    def batch(step):
        if os.getpid() != driver:
            import ray

            (tmp_path / str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())
        return batches[step % 4]

    with local_cluster(devices=2, hosts=2):
        import alpa
        from alpa.device_mesh import get_global_virtual_physical_mesh

        from alpa_dejavu import DejavuStageOption
        from alpa_dejavu.alpa.layer_option import DejavuLayerOption
        from alpa_dejavu.alpa.ray_cluster import alpa_hosts, host_names

        alpa.init("ray")
        mesh = get_global_virtual_physical_mesh()
        plan = plan_on(host_names(mesh)[0])
        with pytest.raises(ValueError, match=r"isn't for this cluster: .*'elsewhere'"):
            spare_workers(plan_on("elsewhere"))
        method = alpa.PipeshardParallel(
            num_micro_batches=2, layer_option=DejavuLayerOption(2), stage_option=DejavuStageOption(plan=plan)
        )
        step = alpa.parallelize(make_step(alpa.value_and_grad), method=method, donate_argnums=())
        executable = step.get_executable(jax.eval_shape(init_fn, jax.random.PRNGKey(0)), batches[0])
        options = spare_workers(plan)
        result = parallel_initialize(
            init_fn, make_step(jax.value_and_grad), batch, num_candidates=2, budget_steps=16, lanes=1,
            workers=len(options), worker_options=options,
        )  # fmt: skip
        spare_node = alpa_hosts(mesh)[1].info["NodeID"]
        state, losses = placed(result.state, executable), []
        for n in range(STEPS):
            state, loss = step(state, batches[n])
            losses.append(float(np.asarray(loss)))
        assert step.get_last_executable() is executable
        assert len(executable.mesh_group) == 2
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert written == [spare_node] * 2, "a process for each device of the other host"
    alone, state, expected = jax.jit(make_step(jax.value_and_grad)), result.state, []
    for n in range(STEPS):
        state, loss = alone(state, batches[n])
        expected.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
