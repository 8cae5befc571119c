"""The table of plans for hosts that are slow inside: a small model through the whole script."""

import json

import pytest

import slow_inside
from _strategy_cases import cases, model_of
from alpa_dejavu.calibration import prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import PlanningTask, Searched, plan
from alpa_dejavu.planning.model_source import GivenModel
from alpa_dejavu.planning.task import SpaceRules


def small(model, cluster, batch, layers, communication):
    """Plans some layers of GPT-2, in place of the whole planner."""
    assert model == "small"
    whole = with_micro_batch(model_of(cases()[0].layers[1 : layers + 1], "gpt2", profiled=False), 4)
    task = PlanningTask(
        source=GivenModel(whole, 4),
        prices=prices(cluster, None, "analytic", communication),
        batch=batch,
        layers=(layers,),
        micro_batches=(batch // 4,),
        chooser=Searched(),
        space=SpaceRules(remat=("none",), zero=(0,)),
    )
    return plan(task)


def test_the_plan_that_knows_the_links_is_the_fastest_on_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slow_inside, "plan_model", small)
    out = tmp_path / "out.json"
    assert slow_inside.main(["--model", "small", "--batch", "64", "--layers", "8", "--json", str(out)]) == 0
    written = json.loads(out.read_text(encoding="utf-8"))
    plans = written["plans"]
    assert written["simulated"]
    ours, others = plans["links of the file"], [plans[name] for name in list(plans)[:2]]
    assert min(one["step_s"] for one in others) > 1.05 * ours["step_s"]
    assert ours["step_s"] == pytest.approx(ours["believed_s"], rel=0.05)
    assert 0 <= ours["cards_busy"] < 1
    shown = capsys.readouterr().out
    assert "simulated" in shown
    assert f"{others[0]['step_s'] / ours['step_s']:.2f}x" in shown


def test_links_that_are_believed_alike_are_those_between_hosts():
    cluster = named_cluster(str(slow_inside.CLUSTER))
    assert {link.bytes_per_s for row in slow_inside.with_links_alike(cluster).links for link in row} == {12.5e9}
    assert cluster.links[2][2].bytes_per_s == 3e9


def test_a_file_that_isnt_there_is_named(tmp_path, capsys):
    assert slow_inside.main(["--cluster", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
