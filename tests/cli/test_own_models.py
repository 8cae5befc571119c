"""Models of one's own, as module:function: planned for as the named ones are, and their errors are their own."""

import pathlib
import sys
import textwrap

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.layers import trace
from alpa_dejavu.planning import plan_model
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.sharding import model_of_step

SOURCE = """
    import jax
    from alpa_dejavu.layers.models import model_function

    def gpt(batch_size):
        return model_function("gpt-125m")(batch_size)

    def small(batch_size):
        def step(state, batch):
            gradients = jax.grad(lambda weights: (jax.numpy.tanh(batch @ weights[0]) @ weights[1]).mean())(state)
            return jax.tree.map(jax.numpy.subtract, state, gradients)

        return step, ([jax.ShapeDtypeStruct((8, 8), "float32")] * 2, jax.ShapeDtypeStruct((batch_size, 8), "float32"))

    def fails(batch_size):
        return {}["nothing"]

    def fails_in_its_step(batch_size):
        def step(state, batch):
            return jax.grad(lambda weight: loss(weight, batch))(state)

        return step, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in ((3, 4), (batch_size, 5)))

    def loss(weight, batch):
        return (batch @ weight).sum()

    def fails_backward(batch_size):
        function = jax.custom_vjp(loss)
        function.defvjp(lambda weight, batch: (loss(weight, batch), None), rule)

        def step(state, batch):
            return jax.grad(lambda weight: function(jax.nn.silu(weight @ weight @ weight), batch) ** 2)(state)

        return step, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in ((5, 5), (batch_size, 5)))

    def rule(kept, gradient):
        raise LookupError("no such rule")
"""


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    (tmp_path / "my_own_models.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_own_models", None)


def planned(model, where):
    arguments = ["--cluster", "p3.16xlarge", "--batch", "64", "--micro-batches", "8", "--layers", "2", "--json", where]
    result = CliRunner().invoke(main, ["plan", "--model", model, *arguments])
    return result, result.stderr


def test_a_name_is_a_function_like_any_other(tmp_path):
    named, own = (
        model_of_step(trace(model, batch=16, num_micro_batches=2), 4) for model in ("gpt-125m", "my_own_models:gpt")
    )
    assert repr((named.layers, named.tensors)) == repr((own.layers, own.tensors))
    plans = []
    for model in ("gpt-125m", "my_own_models:gpt"):
        where = tmp_path / f"{len(plans)}.json"
        result, said = planned(model, str(where))
        assert result.exit_code == 0, said
        plans.append(read_plan(where))
    assert plans[0].stages == plans[1].stages
    assert plans[0].step_s == plans[1].step_s


def test_layers_left_open_are_as_many_as_there_can_be():
    """The numbers that are tried for large models are more than this one has products."""
    plan = plan_model("my_own_models:small", "p3.8xlarge", batch=64, micro_batches=1).plan
    assert plan.num_layers == 2


@pytest.mark.parametrize(
    ("function", "error", "line"),
    [
        ("fails", "KeyError: 'nothing'", 'return {}["nothing"]'),
        ("fails_in_its_step", "TypeError: dot_general requires", "return (batch @ weight).sum()"),
        ("fails_backward", "LookupError: no such rule", 'raise LookupError("no such rule")'),
    ],
)
def test_a_function_that_fails_shows_its_own_error(function, error, line, tmp_path):
    where = tmp_path / "plan.json"
    result, said = planned(f"my_own_models:{function}", str(where))
    assert result.exit_code == 1
    assert error in said
    assert line in said
    first = next(text for text in said.splitlines() if text.lstrip().startswith("File "))
    assert "my_own_models.py" in first, said
    assert not where.exists()


def test_unlike_hosts_of_a_file_are_known_from_what_is_kept_beside_their_plan(tmp_path):
    file = pathlib.Path(__file__).parents[2] / "examples" / "clusters" / "two-unlike-hosts.yaml"
    first, second = tmp_path / "plan.json", tmp_path / "again.json"
    shared = ["--cluster", str(file), "--batch", "64", "--layers", "16", "--no-cache"]
    for words in (
        ["plan", "--model", "gpt-125m", *shared, "--json", str(first)],
        ["estimate", str(first), "--no-cache", "--json", str(second)],
        ["diff", str(first), str(second)],
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    assert "the plans don't differ in what they run" in done.stdout
    plan, again = read_plan(first), read_plan(second)
    assert (again.step_s, again.hardware) == (plan.step_s, plan.hardware)
    assert again.priced_by.latency == plan.priced_by.latency
