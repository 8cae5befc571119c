"""Prices that one process keeps for others: plans are the same, and another question needs no new ones."""

import concurrent.futures
import dataclasses
import gzip

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.latency import AnalyticLatency, LatencyModel
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search.models import model_cache
from alpa_dejavu.planning.search.models.cached_prices import CachedPrices
from alpa_dejavu.planning.search.models.model_cache import ModelCache
from alpa_dejavu.plans.plan_file import plan_text
from alpa_dejavu.slicing.kept_slicings import KeptSlicings
from tanh_layers import trained

SIZES = "transformer:hidden=64,blocks=4,heads=4,vocabulary=256,sequence=32"
HOSTS = named_cluster("p3.16xlarge", 2)
KEY = {"model": "a"}


@pytest.fixture
def cache(tmp_path):
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def added(monkeypatch):
    """The texts of the prices that are made."""
    texts, add = [], KeptPrices.add

    def noted(self, text, figures):
        texts.append(text)
        add(self, text, figures)

    monkeypatch.setattr(KeptPrices, "add", noted)
    return texts


@pytest.fixture
def solved(monkeypatch):
    """The problems that are sliced."""
    problems, of = [], KeptSlicings.of

    def noted(self, problem, slice_anew, limits):
        return of(self, problem, lambda problem: problems.append(problem) or slice_anew(problem), limits)

    monkeypatch.setattr(KeptSlicings, "of", noted)
    return problems


def planned(cache, model=trained, cluster=HOSTS, batch=32, micro_batches=4, **more):
    folder = False if cache is None else cache.folder
    layers = None if model is SIZES else 3
    return plan_model(model, cluster, batch=batch, micro_batches=micro_batches, layers=layers, cache=folder, **more)


def text(result):
    return plan_text(dataclasses.replace(result.plan, planning_s={}))


OTHERS = {
    "batch": {"batch": 64, "micro_batches": 8},
    "hosts": {"cluster": HOSTS.part([0])},
    "price": {"cluster": dataclasses.replace(HOSTS, hosts=tuple(
        dataclasses.replace(host, price_per_hour=1.0) for host in HOSTS.hosts))},
    "margin": {"memory_margin": 0.4},
}  # fmt: skip


@pytest.mark.parametrize("model", [trained, SIZES], ids=["traced", "sizes"])
def test_another_question_on_the_same_model_and_machine_makes_no_prices(cache, added, model):
    runtime = {"runtime": "megatron"} if model is SIZES else {}
    questions = [{**runtime, **other} for other in ({}, *OTHERS.values())]
    anew = [text(planned(None, model, **question)) for question in questions]
    del added[:]
    assert text(planned(cache, model, **runtime)) == anew[0]
    assert added
    del added[:]
    assert [text(planned(cache, model, **question)) for question in questions] == anew
    assert added == []


def test_the_same_question_and_another_price_slice_nothing(cache, solved):
    first = text(planned(cache))
    assert solved
    del solved[:]
    assert text(planned(cache)) == first
    planned(cache, **OTHERS["price"])
    assert solved == []
    assert text(planned(cache, **OTHERS["batch"])) == text(planned(None, **OTHERS["batch"]))
    assert solved


def test_other_cost_models_code_and_samples_have_prices_of_their_own(cache, added, monkeypatch):
    planned(cache)
    for other in (
        {"latency": "analytic"},
        {"communication": AlphaBeta()},
        {"runtime": "torchtitan", "attention": "plain"},
        {"batch": 64},
    ):
        anew = text(planned(None, **other))
        del added[:]
        assert text(planned(cache, **other)) == anew
        assert added
    monkeypatch.setattr(model_cache, "_code", lambda *_: "another version")
    del added[:]
    planned(cache)
    assert added


class Slow(LatencyModel):
    def predict(self, operators, device):
        latency = AnalyticLatency().predict(operators, device)
        return dataclasses.replace(latency, mean_s=2 * latency.mean_s)


def test_by_models_whose_content_is_not_known_nothing_is_kept(cache):
    planned(cache, latency=Slow())
    assert not any(b'"of_ranges"' in gzip.decompress(path.read_bytes()) for path in cache.folder.iterdir())
    assert CachedPrices(cache).of(KEY, 3, CostModels(Slow(), AlphaBeta())) is None
    assert CachedPrices(None).of(KEY, 3, CostModels.named()) is None


def test_broken_prices_are_made_anew_with_a_line(cache, added, caplog):
    first = text(planned(cache))
    for path in cache.folder.iterdir():
        data = gzip.decompress(path.read_bytes())
        if b'"of_ranges"' in data:
            path.write_bytes(gzip.compress(data.replace(b'"columns"', b'"rows"', 1)))
    del added[:]
    assert text(planned(cache)) == first
    assert added
    assert {record.getMessage().partition(" is broken")[2][:8] for record in caplog.records} == {" ('colum"}
    del added[:]
    planned(cache)
    assert added == []


def test_where_nothing_can_be_written_there_is_a_line_and_a_plan(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert text(planned(ModelCache(tmp_path / "file" / "cache"))) == text(planned(None))
    (record,) = caplog.records
    assert "can't be written" in record.getMessage()


def test_two_writers_leave_an_entry_that_is_whole(cache):
    models = CostModels.named()

    def write(n):
        prices = CachedPrices(cache)
        kept = prices.of(KEY, 2, models)
        kept.add(f"of {n}", np.array([[[float(n), 0.0], [0.0, 1.0]]]))
        prices.keep()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    kept = CachedPrices(cache).of(KEY, 2, models)
    numbers = [n for n in range(24) if f"of {n}" in kept]
    assert numbers
    assert all(kept.figures(f"of {n}")[0, 0, 0] == n for n in numbers)
    assert cache.size()[0] == 1
