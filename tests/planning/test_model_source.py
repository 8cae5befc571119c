"""Where a model comes from: traced, given or kept; to the bit the same, and nothing is traced that is known."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu import layers, sharding
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.table import CostTable, cost_table
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.search.models import model_cache
from alpa_dejavu.planning.search.models._sharding import entry_of
from alpa_dejavu.planning.search.models.model_cache import ModelCache, default_cache, read_packed
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.search.models.traced_model import TracedModel
from alpa_dejavu.plans.plan_file import write_plan
from alpa_dejavu.problem import MeshConfig, Run
from models import chain
from tanh_layers import inferred, predict, trained

CLUSTER = named_cluster("p3.16xlarge", 2)
ARRAYS = [
    field.name
    for field in dataclasses.fields(CostTable)
    if field.name.endswith("_s") or field.name in ("offered", "max_n_succ_stages", "memory_limit_bytes")
]


@pytest.fixture
def cache(tmp_path):
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def traces(monkeypatch):
    """The micro-batches that models are traced for."""
    made, original = [], layers.trace

    def trace(model, *, batch):
        made.append(batch)
        return original(model, batch=batch)

    monkeypatch.setattr(layers, "trace", trace)
    return made


def table(model, micro_batch, cluster=CLUSTER):
    space = search_space(cluster, micro_batch, remat=("none", "layer"), zero=(0, 2, 3))
    return cost_table(model, cluster, space, Run(4), CostModels.named())


def same_prices(one, other, micro_batch, cluster=CLUSTER):
    first, second = (table(model, micro_batch, cluster) for model in (one, other))
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


def kept(model, cache, num_layers=3, micro_batch=8, cluster=CLUSTER):
    """What another process leaves behind after pricing a model."""
    source = TracedModel(model, micro_batch, cache)
    source.numbers_of_layers([num_layers])
    table(source.exact(num_layers, micro_batch), micro_batch, cluster)
    source.keep()


def ruled(gradient):
    """A model with a rule of its own for its derivative: nothing in its loss tells one rule from another."""

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (gradient(x, g),))

    def function(batch_size):
        def step(state, x):
            grad = jax.grad(lambda w: f(f(f(x @ w) @ w) @ w).mean())(state)
            return state - grad

        return step, (jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((batch_size, 16), jnp.float32))

    return function


def constant(x, g):
    return g * 0.5


def product(x, g):
    return g * (x @ jnp.ones((16, 16)))


@pytest.mark.parametrize(
    ("model", "num_layers"),
    [
        ("gpt-125m", 4),
        ("moe-380m", 3),
        pytest.param("wresnet-250m", 3, marks=pytest.mark.slow),
        (trained, 3),
        (inferred, 3),
        (ruled(product), 1),
    ],
    ids=["gpt", "moe", "wresnet", "training", "inference", "custom"],
)
def test_prices_are_the_same_to_the_bit_with_the_cache_and_without(model, num_layers, cache):
    kept(model, cache, num_layers)
    plain, found = TracedModel(model, 8), TracedModel(model, 8, cache)
    assert same_prices(found.exact(num_layers, 8), plain.exact(num_layers, 8), 8)
    assert same_prices(found.scaled(num_layers, 2), plain.scaled(num_layers, 2), 2)
    assert (found.training, found.name) == (plain.training, plain.name)
    assert found.numbers_of_layers([num_layers, 40]) == plain.numbers_of_layers([num_layers, 40])


def test_models_by_name_are_found_without_a_trace_and_written_once(cache, traces, monkeypatch):
    kept("gpt-125m", cache, num_layers=4)
    assert traces == [8]
    monkeypatch.setattr(ModelCache, "write", lambda *_: pytest.fail("nothing was learned"))
    source = TracedModel("GPT-125M", 8, cache)
    assert source.training
    assert source.numbers_of_layers([4]) == (4,)
    table(source.exact(4, 8), 8)
    source.keep()
    assert traces == [8]


def test_a_small_plan_by_name_from_the_cache_imports_neither_jax_nor_numba_nor_what_checks_files(tmp_path):
    code = (
        "import sys; from alpa_dejavu.planning import plan_model; "
        "plan_model('gpt-125m', 'p3.16xlarge', batch=32, layers=4); "
        "print(*(name in sys.modules for name in ('jax', 'numba', 'scipy', 'pydantic')))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs == ["True True True False\n", "False False False False\n"]


def test_other_models_are_found_by_their_content(cache, monkeypatch):
    kept(trained, cache)
    monkeypatch.setattr(sharding, "model_of_step", lambda *_: pytest.fail("it was cut and described before"))

    def again(batch_size):
        return trained(batch_size)

    source = TracedModel(again, 8, cache)
    assert source.name.endswith("again")
    source.exact(3, 8)
    monkeypatch.undo()
    other = TracedModel(inferred, 8, cache)
    assert not other.exact(3, 8).training


def test_rules_for_derivatives_are_part_of_the_content(cache):
    kept(ruled(constant), cache, num_layers=1)
    other = TracedModel(ruled(product), 8, cache).exact(1, 8)
    assert same_prices(other, TracedModel(ruled(product), 8).exact(1, 8), 8)
    assert not same_prices(other, TracedModel(ruled(constant), 8).exact(1, 8), 8)


def test_the_digest_of_a_step_is_the_same_in_every_process():
    code = (
        "from alpa_dejavu.layers import step_digest, trace; "
        "print(*(step_digest(trace(name, batch=4)) for name in ('gpt-125m', 'moe-380m')))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_meshes_that_were_not_asked_for_are_solved_by_a_trace(cache, traces):
    small = named_cluster("p3.8xlarge")
    kept("gpt-125m", cache, num_layers=4, cluster=small)
    source = TracedModel("gpt-125m", 8, cache)
    model = source.exact(4, 8)
    table(model, 8, small)
    assert traces == [8]
    assert same_prices(model, TracedModel("gpt-125m", 8).exact(4, 8), 8)
    source.keep()
    del traces[:]
    table(TracedModel("gpt-125m", 8, cache).exact(4, 8), 8)
    assert traces == []


def test_other_code_and_other_settings_of_jax_find_nothing(cache, traces, monkeypatch):
    kept("gpt-125m", cache, num_layers=4)
    jax.config.update("jax_enable_x64", True)
    try:
        TracedModel("gpt-125m", 8, cache).exact(4, 8)
    finally:
        jax.config.update("jax_enable_x64", False)
    with monkeypatch.context() as changed:
        changed.setenv("JAX_ENABLE_X64", "1")
        TracedModel("gpt-125m", 8, cache).exact(4, 8)
    monkeypatch.setattr(model_cache, "_code", lambda *_: "another version")
    TracedModel("gpt-125m", 8, cache).exact(4, 8)
    assert traces == [8] * 4


def test_entries_that_hold_something_else_are_replaced(cache, traces, caplog):
    kept("gpt-125m", cache, num_layers=4)
    source = TracedModel("gpt-125m", 8, cache)
    for num_layers in (4, None):
        cache.write(source._key(8, num_layers), {"model": {"layers": [1]}})
    assert source.numbers_of_layers([4]) == (4,)
    assert same_prices(source.exact(4, 8), TracedModel("gpt-125m", 8).exact(4, 8), 8)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    source.keep()
    del traces[:]
    TracedModel("gpt-125m", 8, cache).exact(4, 8)
    assert traces == []


def test_scaled_models_take_nearly_as_long_as_exact_ones_on_gpus():
    def wide(batch_size):
        def step(state, x):
            gradients = jax.grad(lambda w: (predict(w, x) ** 2).mean())(state)
            return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients)

        held = [jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16) for _ in range(6)]
        return step, (held, jax.ShapeDtypeStruct((batch_size, 2048), jnp.bfloat16))

    def computed_s(model):
        costs = StageCostModel(model, CLUSTER, CostModels.named("kernels", "nccl"))
        device, config = costs.places.on((0,)), MeshConfig((1, 1), 1, 1)
        return sum(float(each[0, -1]) for each in costs.computed_s(device, config)[:2])

    source = TracedModel(wide, 512)
    exact = {samples: computed_s(source.exact(3, samples)) for samples in (512, 8192)}
    assert exact[8192] > 5 * exact[512]
    for known, samples in ((512, 8192), (8192, 512)):
        found = computed_s(with_micro_batch(source.exact(3, known), samples / known))
        assert found == pytest.approx(exact[samples], rel=0.15)


def test_a_micro_batch_has_samples():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"micro_batch is {wrong}, but must be at least 1"):
            TracedModel(trained, wrong)
        with pytest.raises(ValueError, match=f"micro_batch is {wrong}, but must be at least 1"):
            TracedModel(trained, 8).exact(3, wrong)


def test_a_model_that_is_given_is_what_it_is():
    model = chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
    source = GivenModel(model, 8, "mine")
    assert (source.name, source.training, source.numbers_of_layers([16, 32])) == ("mine", True, (4,))
    assert source.exact(4, 8) is model
    assert source.scaled(4, 8) is model
    assert same_prices(source.scaled(4, 4), with_micro_batch(model, 1 / 2), 4)
    source.keep()
    with pytest.raises(ValueError, match="micro_batch is 4, but must be 8, with which mine was given"):
        source.exact(4, 4)
    with pytest.raises(ValueError, match="num_layers is 5, but must be 4, with which mine was given"):
        source.scaled(5, 8)


def test_a_plan_is_the_same_from_the_cache_and_keeps_nothing_where_that_is_asked(traces):
    plans = [
        dataclasses.replace(plan_model("gpt-125m", "p3.16xlarge", batch=32, layers=4, cache=cache).plan, planning_s={})
        for cache in (False, None, None)
    ]
    for plan in plans[1:]:
        assert dataclasses.replace(plan, confidence=plans[0].confidence) == plans[0]
        # Products of matrices are free in the last bit.
        assert plan.confidence.interval_s == pytest.approx(plans[0].confidence.interval_s)
    # What is traced for the first plan, and for the one that is kept; the third one finds all of it.
    assert len(traces) == 2 * len(set(traces))
    keys = [read_packed(path)["key"] for path in default_cache().folder.iterdir()]
    of_models = [key for key in keys if not key.keys() & {"prices", "slicings"}]
    assert len(of_models) == 1 + len(set(traces))


def test_a_model_cut_at_its_marks_is_kept_whatever_number_of_layers_is_wanted(caplog):
    model = "transformer:hidden=16,blocks=18,heads=2,vocabulary=128,sequence=16"
    plans = [plan_model(model, "p3.8xlarge", batch=8).plan for _ in range(2)]
    assert plans[0].num_layers == plans[1].num_layers > 2
    assert not caplog.records


def test_a_plan_is_made_where_nothing_can_be_kept(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "file" / "cache"))
    assert plan_model("gpt-125m", "p3.16xlarge", batch=32, layers=4).plan.num_layers == 4
    assert len(caplog.records) == 1


def test_a_plan_is_estimated_at_its_own_micro_batch(traces):
    plan = plan_model("gpt-125m", "p3.16xlarge", batch=32, micro_batches=4, layers=4).plan
    other = dataclasses.replace(plan, num_micro_batches=16)
    estimator = PlanEstimator(plan)
    del traces[:]
    estimator.estimate(plan)
    assert traces == []
    made = estimator.estimate(other)
    assert traces == [2]
    assert same_prices(made.model, sharding.model_of_step(layers.trace("gpt-125m", batch=2), 4), 2)


def test_the_commands_leave_the_cache_alone_where_that_is_asked(tmp_path):
    path = tmp_path / "plan.json"
    asked = ["--model", "gpt-125m", "--cluster", "p3.16xlarge", "--batch", "32", "--layers", "4"]
    assert CliRunner().invoke(main, ["plan", *asked, "--no-cache", "--json", str(path)]).exit_code == 0
    assert CliRunner().invoke(main, ["estimate", str(path), "--no-cache"]).exit_code == 0
    assert default_cache().size()[0] == 0
    write_plan(plan_model("gpt-125m", "p3.16xlarge", batch=32, layers=4).plan, path)
    assert default_cache().size()[0] > 0
    assert CliRunner().invoke(main, ["estimate", str(path)]).exit_code == 0


def test_exact_models_are_traced_with_so_many_samples(traces):
    source = TracedModel(trained, 8)
    model = source.exact(3, 2)
    assert source.exact(3, 2) is model
    assert traces == [2]
    assert same_prices(model, sharding.model_of_step(layers.trace(trained, batch=2), 3), 2)


def test_numbers_of_layers_that_share_a_trace_are_priced_as_if_they_did_not():
    source = TracedModel("gpt-125m", 8)
    for num_layers in (4, 6):
        assert same_prices(source.exact(num_layers, 8), TracedModel("gpt-125m", 8).exact(num_layers, 8), 8)


def test_scaled_models_are_those_of_the_nearest_exact_one(traces):
    source = TracedModel(trained, 8)
    assert same_prices(source.scaled(3, 2), with_micro_batch(source.exact(3, 8), 1 / 4), 2)
    source.exact(3, 1)
    assert same_prices(source.scaled(3, 2), with_micro_batch(source.exact(3, 1), 2), 2)
    assert source.scaled(3, 1) is source.exact(3, 1)
    assert traces == [8, 1]


def test_scaled_models_do_not_hang_on_what_the_cache_has(cache):
    kept("gpt-125m", cache, num_layers=4, micro_batch=2)
    plain, found = TracedModel("gpt-125m", 8), TracedModel("gpt-125m", 8, cache)
    assert same_prices(found.scaled(4, 2), plain.scaled(4, 2), 2)


def test_an_entry_of_another_number_of_layers_is_left_aside_and_made_anew(cache, caplog):
    kept(trained, cache)
    first, second = (TracedModel(trained, 8, cache) for _ in range(2))
    cache.write(first._key(8, 2), entry_of(first.exact(3, 8)))
    assert second.exact(2, 8).num_layers == 2
    assert "is broken (it has 3 layers, but must have 2): it will be replaced" in caplog.text
