"""Prices of stages that are kept: the same to the bit, and made once for whatever doesn't change them."""

import dataclasses
import json

import numpy as np
import pytest

from alpa_dejavu._util.content import content_digest
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.offload_choices import with_offload
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.latency import AnalyticLatency, LatencyModel
from alpa_dejavu.costs.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import CostTable, cost_table
from alpa_dejavu.problem import Run
from models import chain

HOSTS, RUN = named_cluster("p3.16xlarge", 2), Run(4)
ARRAYS = [
    field.name
    for field in dataclasses.fields(CostTable)
    if field.name.endswith("_s") or field.name in ("offered", "max_n_succ_stages", "memory_limit_bytes")
]


class Counted(LatencyModel):
    """The roofline, which counts of how many operators it is asked."""

    asked = 0

    def predict(self, operators, device):
        self.asked += len(operators)
        return AnalyticLatency().predict(operators, device)


def table(cluster, kept, latency, *, run=RUN, margin=COUNTED, offload="none", samples=8):
    space = with_offload(search_space(cluster, samples, remat=("none", "layer"), zero=(0, 3)), cluster, offload)
    return cost_table(chain(6), cluster, space, run, CostModels.named(latency), margin, kept)


def same(one, other):
    figures = [[stage and stage.figures for row in costs.memory for stage in row] for costs in (one, other)]
    np.testing.assert_equal(*figures)
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS)


def again(kept):
    """The store as another process reads it."""
    return KeptPrices.of(json.loads(json.dumps(kept.data())), 6)


def changed(cluster, **fields):
    hosts = tuple(dataclasses.replace(host, name=f"n{n}", **fields) for n, host in enumerate(cluster.hosts))
    return dataclasses.replace(cluster, hosts=hosts)


@pytest.mark.parametrize(
    "other",
    [
        {"run": Run(64)},
        {"run": Run(4, "gpipe")},
        {"cluster": named_cluster("p3.16xlarge", 1)},
        {"cluster": changed(HOSTS, price_per_hour=1.0)},
        {"cluster": changed(HOSTS, memory_margin=0.3)},
        {"margin": MemoryMargin(0.01, None, 0.2)},
    ],
    ids=["micro-batches", "schedule", "hosts", "price", "hosts' margin", "margin"],
)
def test_prices_are_made_once_for_what_does_not_change_them(other):
    kept, latency = KeptPrices(6), Counted()
    first = table(HOSTS, kept, latency)
    assert same(first, table(HOSTS, None, AnalyticLatency()))
    read, latency.asked = again(kept), 0
    question = {"cluster": HOSTS, **other}
    second = table(kept=read, latency=latency, **question)
    assert latency.asked == 0
    assert not read.changed
    assert same(second, table(kept=None, latency=AnalyticLatency(), **question))


def test_of_more_hosts_only_what_is_new_is_priced():
    kept, latency = KeptPrices(6), Counted()
    table(HOSTS, kept, latency)
    more, all_anew = named_cluster("p3.16xlarge", 4), Counted()
    latency.asked = 0
    assert same(table(more, kept, latency), table(more, None, all_anew))
    assert 0 < latency.asked < all_anew.asked / 2
    assert same(table(HOSTS, again(kept), latency), table(HOSTS, None, AnalyticLatency()))


def faster(cluster, factor):
    links = tuple(
        tuple(dataclasses.replace(link, bytes_per_s=link.bytes_per_s * factor) for link in row) for row in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


@pytest.mark.parametrize(
    "cluster",
    [
        changed(HOSTS, device=HOSTS.hosts[0].device.slower(2.0)),
        faster(HOSTS, 0.5),
        named_cluster("p4d.24xlarge", 2),
    ],
    ids=["slower", "links", "machine"],
)
def test_other_devices_and_links_have_prices_of_their_own(cluster):
    kept = KeptPrices(6)
    table(HOSTS, kept, AnalyticLatency())
    assert same(table(cluster, again(kept), AnalyticLatency()), table(cluster, None, AnalyticLatency()))


def test_what_is_offloaded_is_kept_too():
    cluster, kept, latency = named_cluster("dgx-a100", 1), KeptPrices(6), Counted()
    question = {"offload": "auto"}
    table(cluster, kept, latency, **question)
    latency.asked = 0
    assert same(table(cluster, again(kept), latency, **question), table(cluster, None, AnalyticLatency(), **question))
    assert latency.asked == 0


def test_ranges_with_equal_figures_are_stored_once_and_told_apart_when_they_differ():
    kept, rng = KeptPrices(5), np.random.default_rng(0)
    figures = {"even": np.ones((2, 5, 5)), "by length": np.subtract.outer(np.arange(5.0), np.arange(5.0))[None]}
    figures["any"] = rng.random((3, 5, 5))
    for text, values in figures.items():
        kept.add(text, values)
        for seen in list(figures)[: list(figures).index(text) + 1]:
            np.testing.assert_array_equal(np.triu(kept.figures(seen)), np.triu(figures[seen]))
    sizes = {name: part["shape"] for name, part in kept.data().items() if name != "rows"}
    assert sizes == {"of_ranges": [5, 5], "columns": [5, 16]}


@pytest.mark.parametrize("wrong", ["another size", "no number", "not finite", "classes", "cut off", "no text"])
def test_broken_figures_are_refused(wrong):
    kept = KeptPrices(3)
    kept.add("a", np.arange(9.0).reshape(1, 3, 3))
    data, size = kept.data(), 4 if wrong == "another size" else 3
    if wrong == "no number":
        data["rows"] = {"a": [7]}
    if wrong == "not finite":
        kept.add("b", np.full((1, 3, 3), np.nan))
        data = kept.data()
    if wrong == "classes":
        data["of_ranges"] = data["columns"]
    if wrong == "cut off":
        data["columns"] = {**data["columns"], "numbers": data["columns"]["numbers"][:-8]}
    if wrong == "no text":
        data["columns"] = {**data["columns"], "numbers": "@"}
    with pytest.raises(ValueError, match=r".+"):
        KeptPrices.of(data, size)


def test_a_digest_goes_by_content():
    array = np.arange(3.0)
    assert content_digest(array) == content_digest(array.copy()) != content_digest(array.astype(np.int64))
    assert content_digest(HOSTS.hosts[0]) != content_digest(named_cluster("p4d.24xlarge").hosts[0])
    assert content_digest(("ab",)) != content_digest(("a", "b"))
    for unknown in (object(), lambda: 0, np.array([object()])):
        with pytest.raises(TypeError, match="content of"):
            content_digest(unknown)
