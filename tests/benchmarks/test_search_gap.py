"""The search's figures: pairs by a seed, the wide search beside the default one, and what is written."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import search_gap
from alpa_dejavu.planning import plan
from alpa_dejavu.problem import NoPlanError
from gaps import _published, _slicers
from gaps._pairs import Pair, drawn
from gaps._wide import Wide, counted

SIZE = 64


def tiny(batch_size):
    def step(weights, x):
        def loss(weights):
            out = x
            for weight in weights:
                out = jnp.tanh(out @ weight)
            return (out**2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32) for _ in range(6)]
    return step, (weights, jax.ShapeDtypeStruct((batch_size, SIZE), jnp.float32))


@dataclasses.dataclass(frozen=True)
class Named:
    """A pair's model: what is traced, with a name that is the same in each run."""

    model = staticmethod(tiny)

    def __call__(self, batch_size):
        return tiny(batch_size)

    def __str__(self):
        return "tiny"


PAIR = Pair(Named(), 16, "p3.8xlarge", 2)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(search_gap, "drawn", lambda seed: iter([PAIR]))
    monkeypatch.setattr(search_gap, "STRATEGIES", ("megatron",))


def test_a_seed_draws_the_same_pairs_each_once():
    one, other = (list(itertools.islice(drawn(seed), 40)) for seed in (1, 2))
    assert one == list(itertools.islice(drawn(1), 40))
    assert one != other
    assert len(set(one)) == 40
    assert {pair.odd for pair in one + other} == {"", "slow link", "slower host"}
    assert all(1 <= pair.hosts <= 8 and (pair.hosts > 1 or not pair.odd) for pair in one + other)


def test_an_odd_host_is_the_first_one_and_a_host_more_is_like_the_last():
    link = dataclasses.replace(PAIR, odd="slow link").cluster(more=1)
    assert link.links[0][1].bytes_per_s == link.links[2][0].bytes_per_s == link.links[1][2].bytes_per_s / 4
    assert link.links[0][0] == link.links[1][1]
    host = dataclasses.replace(PAIR, odd="slower host").cluster(more=1)
    rates = [each.device.rate("float32") for each in host.hosts]
    assert rates[0] * 2 == rates[1] == rates[2]
    assert len(PAIR.cluster().hosts) == 2


def test_the_wide_search_tries_more_shapes_and_finds_nothing_worse():
    with counted() as few_asked:
        default = plan(PAIR.task(), annotations=())
    with counted() as asked:
        chooser = Wide(default.plan.step_s, layers=(2, 4, 6))
        found = plan(dataclasses.replace(PAIR.task(), chooser=chooser), annotations=())
    assert asked["slicings"] > 0 < few_asked["slicings"]
    assert found.plan.step_s <= default.plan.step_s * (1 + 1e-9)


def test_what_is_in_the_file_is_not_computed_again(few, monkeypatch, tmp_path, capsys):
    out = tmp_path / "out.json"
    given = ["--pairs", "1", "--json", str(out), "--only", "gap", "strategies"]
    assert search_gap.main(given) == 0
    written = json.loads(out.read_text())
    assert set(written) > {"version", "settings", "default", "wide", "a host more", "strategies"}
    row = written["wide"][PAIR.name]
    assert set(row) == {"step_s", "layers", "micro_batches", "stages", "hosts", "slicings", "cpu_s"}
    written["wide"][PAIR.name]["step_s"] /= 2
    out.write_text(json.dumps(written))
    monkeypatch.setattr(search_gap, "plan", None)
    assert search_gap.main(given) == 1
    assert "worst 100.00%" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="name another file"):
        search_gap.main([*given, "--seed", "2"])


@pytest.mark.parametrize(("error", "status"), [(NoPlanError("it doesn't fit"), 0), (ValueError("it fails"), 1)])
def test_pairs_that_dont_fit_are_left_out_and_those_that_fail_are_missed(few, monkeypatch, error, status):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(search_gap, "plan", failing)
    assert search_gap.main(["--pairs", "1", "--only", "gap"]) == status


def test_a_faster_strategy_and_a_host_more_that_slows_are_missed():
    shape = {"step_s": 1.0, "layers": 4, "micro_batches": 2, "stages": 1, "hosts": 1, "slicings": 3, "cpu_s": 1.0}
    row = {"pair": "it", "default": shape, "wide": shape, "gap": 0.0, "more_gap": 0.0}
    assert [figure.held for figure in search_gap._gap_figures([row])[1]] == [True, True, True]
    slower = row | {"gap": 0.02, "more_gap": 0.01}
    assert [figure.held for figure in search_gap._gap_figures([row, row, slower])[1]] == [True, True, False]
    assert [figure.held for figure in search_gap._gap_figures([slower])[1]] == [True, False, False]
    others = dict.fromkeys(search_gap.STRATEGIES, shape | {"step_s": 0.99})
    assert not any(figure.held for figure in search_gap._strategies_figures([row | {"others": others}])[1])
    others = {name: {"error": "none"} for name in search_gap.STRATEGIES}
    assert all(figure.held for figure in search_gap._strategies_figures([row | {"others": others}])[1])


def test_slicers_are_judged_by_the_simulated_step_in_equal_time(monkeypatch):
    monkeypatch.setattr(_slicers, "Gradient", lambda plans=(): _slicers.Mcmc(proposals=50))
    task = PAIR.task()
    # A look at the clock takes a second: the formula's DP and the gradient took one each, so the others have two.
    looks, asked, dynamic = itertools.count(), [], _slicers.Dynamic()

    def sliced(problem):
        asked.append(problem.num_stages)
        return dynamic.slice(problem)

    monkeypatch.setattr(_slicers, "Dynamic", lambda: SimpleNamespace(slice=sliced))
    row = _slicers.compared(task, plan(task, annotations=()), lambda: float(next(looks)))
    assert row["dynamic_s"] <= row["formula_alone_s"]
    assert row["took_s"] == 2.0
    assert asked[0] is None
    assert len(asked) == len(set(asked)) == 3
    assert row["scenarios"] == ["alike"]
    assert _slicers.wins([row | {"mcmc_s": 0.0}], "mcmc_s", 1e-3) == 1
    odd = dataclasses.replace(PAIR, odd="slow link", hosts=3).task()
    assert "unlike links" in _slicers.scenarios(odd, plan(odd, annotations=()))


def test_old_plans_are_those_of_the_published_cases_and_are_priced_afresh(monkeypatch):
    assert len(_published.old_plans()) == 21
    made = plan(PAIR.task(), annotations=())
    stages = [
        {
            "layers": stage.layers, "submesh": [stage.submesh.num_hosts, stage.submesh.devices_per_host],
            "logical_mesh": stage.logical_mesh, "options": dict(stage.options), "remat": stage.remat,
            "zero": stage.zero, "hosts": stage.hosts,
        }
        for stage in made.plan.stages
    ]  # fmt: skip
    gpus, count = PAIR.cluster().num_devices, made.run.num_micro_batches
    old = {"model": Named(), "gpus": gpus, "batch": 16, "micro_batches": count, "stages": stages}
    monkeypatch.setattr(_published, "PER_HOST", 4)
    row = _published.compared(old | {"layers": made.model.num_layers}, "p3.8xlarge")
    assert row["old_s"] == pytest.approx(made.plan.step_s)
    assert row["old_fits"]
    held = [search_gap._published_figures([{"pair": "it", **row, "new_s": factor}]) for factor in (0.0, 1e9)]
    assert [figure.held for _, (figure,) in held] == [True, False]

    def failing(*_, **__):
        raise NoPlanError("it doesn't fit")

    monkeypatch.setattr(_published, "plan", failing)
    row = _published.compared(old | {"layers": made.model.num_layers}, "p3.8xlarge")
    _, (figure,) = search_gap._published_figures([{"pair": "it", **row}])
    assert not figure.held
