"""Two streams of a device: what hides behind computing, by hand, by brute force, and on layers that the engine cut."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs import CostModels, Overlap, StageCostModel
from alpa_dejavu.costs._streams import behind_layers_s, makespan_s
from alpa_dejavu.costs.overlap import NO_OVERLAP, PUBLISHED, named_overlap
from alpa_dejavu.costs.runtime import ALPA, runtime_profile, with_overlap
from alpa_dejavu.costs.stage_costs import COST_KINDS
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Cluster, Link, MeshConfig, Submesh
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.sharding.transformers import execution, transformer_model
from alpa_dejavu.testing import example_cluster
from models import chain
from parallel_layers import kraken, megatron

STREAMS = Overlap("streams")
SLOW = Overlap("streams", 1.25, 1.5)


def models(overlap):
    return CostModels.named(runtime=with_overlap(ALPA, overlap))


def edges(*pairs):
    return np.array(pairs, dtype=np.int32).reshape(-1, 2)


def test_names_and_factors_are_checked():
    assert named_overlap("none") == NO_OVERLAP == Overlap()
    assert named_overlap(SLOW) is SLOW
    assert named_overlap("streams") == PUBLISHED == Overlap("streams", 1.3, 1.3)
    for overlap in (NO_OVERLAP, PUBLISHED, SLOW):
        assert runtime_profile(with_overlap(ALPA, overlap).name).overlap == overlap
    with pytest.raises(ValueError, match=r"runtime is 'alpa\+lanes', but must be .* with '\+streams'"):
        runtime_profile("alpa+lanes")
    assert (NO_OVERLAP.streams, STREAMS.streams) == (False, True)
    with pytest.raises(ValueError, match=r"overlap is 'all', but must be one of .*; or give an Overlap"):
        named_overlap("all")
    with pytest.raises(ValueError, match=r"compute_slowdown is 0\.9, but must be from 1 to 4; give the seconds"):
        Overlap("streams", 0.9)
    with pytest.raises(ValueError, match="transfer_slowdown is nan, but must be from 1 to 4"):
        Overlap("streams", 1.0, float("nan"))


def test_a_chain_hides_nothing_and_what_is_independent_hides():
    computed, sent = np.array([2.0, 3.0]), np.array([4.0])
    assert makespan_s(computed, sent, edges((0, 2), (2, 1)), STREAMS) == 9.0
    assert makespan_s(computed, sent, edges((0, 2)), STREAMS) == 6.0
    assert makespan_s(computed, sent, edges(), STREAMS) == 5.0
    # 2 s computed, then 4 s sent at 2/3 beside 3 s computed at 4/5: 3.75 s, in which 2.5 s are sent.
    assert makespan_s(computed, sent, edges((0, 2)), SLOW) == pytest.approx(2 + 3.75 + 1.5)
    assert makespan_s(computed, np.array([]), edges(), STREAMS) == 5.0


def test_a_flow_that_waits_for_itself_is_refused():
    with pytest.raises(ValueError, match="nodes that wait for each other"):
        makespan_s(np.ones(2), np.ones(1), edges((0, 2), (2, 1), (1, 0)), STREAMS)


@st.composite
def graphs(draw, most=3):
    counts = draw(st.integers(1, most)), draw(st.integers(1, most))
    size = sum(counts)
    seconds = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    pairs = draw(st.sets(st.sampled_from(list(itertools.combinations(range(size), 2)))))
    found = edges(*((order[a], order[b]) for a, b in pairs))
    return np.array(seconds[: counts[0]]), np.array(seconds[counts[0] :]), found


def in_order(orders, seconds, before, overlap):
    """When the last node is done if each stream takes its nodes in an order; None if they wait for each other."""
    left = [list(order) for order in orders]
    work, done, now = dict(enumerate(seconds)), set(), 0.0
    while any(left):
        running = [order[0] if order and before[order[0]] <= done else None for order in left]
        if running == [None, None]:
            return None
        both = None not in running
        slow = (overlap.compute_slowdown, overlap.transfer_slowdown) if both else (1.0, 1.0)
        step = min(work[node] * factor for node, factor in zip(running, slow, strict=True) if node is not None)
        now += step
        for row, node, factor in zip(left, running, slow, strict=True):
            if node is not None:
                work[node] -= step / factor
                if work[node] < 1e-12:
                    done.add(row.pop(0))
    return now


@given(graphs(), st.sampled_from([STREAMS, SLOW]))
def test_a_simulated_pass_is_one_of_all_possible_ones(graph, overlap):
    computed, sent, pairs = graph
    seconds, count = [*computed, *sent], len(computed)
    before = [{int(a) for a, b in pairs if b == n} for n in range(len(seconds))]
    orders = itertools.product(itertools.permutations(range(count)), itertools.permutations(range(count, len(seconds))))
    possible = [in_order(each, seconds, before, overlap) for each in orders]
    possible = [one for one in possible if one is not None]
    found = makespan_s(computed, sent, pairs, overlap)
    assert min(abs(one - found) for one in possible) < 1e-9
    assert min(possible) - 1e-9 <= found


@given(graphs(most=12), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_a_pass_takes_no_less_than_either_stream_and_no_more_than_both(graph, compute_slowdown, transfer_slowdown):
    computed, sent, pairs = graph
    found = makespan_s(computed, sent, pairs, Overlap("streams", compute_slowdown, transfer_slowdown))
    assert max(computed.sum(), sent.sum()) - 1e-9 <= found <= computed.sum() + sent.sum() + 1e-9


def behind_all_layers(computed, fetched, sent, overlap, stage=None, backward=False):
    count, alone = len(computed), np.ones((1, 1))
    stages = np.array([stage or (0, count - 1)])
    messages = [(np.array([row]), alone) for row in (fetched, sent)]
    behind = behind_layers_s(stages, np.arange(count)[None], np.array(computed), *messages, overlap, backward)
    return float(behind[0])


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(0.0, 3.0)] * 3), min_size=1, max_size=6),
    st.sampled_from([STREAMS, SLOW, Overlap("streams", 1.0, 1.3)]),
    st.sampled_from(["fetched", "sent"]),
)
def test_layers_are_as_their_graph_is(layers, overlap, which):
    # A layer's bucket waits for its computing; or its parameters come while the layer before it computes.
    count = len(layers)
    computed = np.array([one[0] for one in layers])
    fetched = np.array([one[1] * (which == "fetched") for one in layers])
    sent = np.array([one[2] * (which == "sent") for one in layers])
    pairs = [(n - 1, n) for n in range(1, count)]
    if which == "sent":
        pairs += [(n, count + n) for n in range(count)]
    else:
        pairs += [(count + n, n) for n in range(count)] + [(n - 2, count + n) for n in range(2, count)]
        pairs += [(count + n - 1, count + n) for n in range(1, count)]
    taken = makespan_s(computed, fetched + sent, edges(*pairs), overlap) - computed.sum()
    behind = behind_all_layers(computed, fetched, sent, overlap)
    assert min(behind, (fetched + sent).sum()) == pytest.approx(taken, abs=1e-9)
    # The other way round, in a stage in the middle of others
    rows = [np.concatenate([[9.0], row[::-1], [9.0]]) for row in (computed, fetched, sent)]
    assert behind_all_layers(*rows, overlap, (1, count), backward=True) == pytest.approx(behind)


def priced(model, config, overlap="none", runtime="alpa", cluster=None):
    cluster = cluster or example_cluster(num_hosts=1)
    costs = StageCostModel(model, cluster, CostModels.named(runtime=with_overlap(runtime_profile(runtime), overlap)))
    devices = costs.places.on_submesh(Submesh(1, 4))
    return costs, devices, dict(zip(COST_KINDS, costs.seconds(devices, config), strict=True))


DATA = MeshConfig((4, 1), 4, 1)


def test_gradients_go_in_buckets_behind_the_backward_pass_of_earlier_layers():
    model = chain(4, flop=2e9, parameter_bytes=1.2e7, exchanged=())
    costs, devices, found = priced(model, DATA, STREAMS)
    computed = 2 * 2e9 / 4 / 1e12
    bucket = 6 * (1e-5 + 1.2e7 / 4 / 1e10)
    for i, j in itertools.combinations_with_replacement(range(4), 2):
        now = sent = 0.0
        for _ in range(j - i + 1):
            now += computed
            sent = max(sent, now) + bucket
        assert found["synchronisation_s"][i, j] == pytest.approx(sent - now)
    assert found["synchronisation_s"][0, 0] == pytest.approx(bucket)
    assert found["synchronisation_s"][0, 3] < 4 * bucket
    ((_, whole),) = costs.combined(devices, DATA, "step")
    assert costs.hidden_s(devices, DATA)[2] == pytest.approx(whole - found["synchronisation_s"], abs=1e-12)


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("remat", ["none", "layer"])
@pytest.mark.parametrize("shape", [(4, 1), (2, 2), (1, 4)])
def test_no_stage_is_quicker_than_either_stream_or_slower_than_both(zero, remat, shape):
    model = chain(5, flop=3e9, parameter_bytes=8e6, exchanged=(3e6,))
    config = MeshConfig(shape, *shape, remat=remat, zero=zero)
    _, _, alone = priced(model, config)
    for overlap in (STREAMS, SLOW):
        costs, devices, found = priced(model, config, overlap)
        hidden = costs.hidden_s(devices, config)
        for n, (kind, beside) in enumerate([
            ("collective_forward_s", "compute_forward_s"), ("collective_backward_s", "compute_backward_s"),
            ("synchronisation_s", "compute_backward_s"),
        ]):  # fmt: skip
            assert (hidden[n] >= 0).all()
            assert found[kind] + hidden[n] == pytest.approx(alone[kind], abs=1e-12)
            assert (hidden[n] <= alone[beside] + 1e-12).all()
        assert (found["synchronisation_s"] >= 0).all()
        for kind in ("compute_forward_s", "compute_backward_s", "update_s"):
            assert np.array_equal(found[kind], alone[kind])


@functools.cache
def cut(build, **sizes):
    return model_of_step(trace(build(**sizes), batch=4), 3)


def linked(bytes_per_s):
    """Four devices in a host, with a link of this rate."""
    one = example_cluster(num_hosts=1)
    link = Link(1e-6, bytes_per_s)
    return Cluster.uniform("linked", ["host-0"], one.hosts[0].device, 4, link, link)


def independent_s(costs, devices, config, variant, phase):
    """The seconds of the operators that neither wait for the pass's one collective nor are waited for by it."""
    division = costs.division(config)
    flow, operators = division.flow(variant, phase), division.operators(phase)[variant]
    assert sum(len(one.counts) for one in flow.collectives) == 1
    after = np.zeros((flow.num_nodes,) * 2, dtype=bool)
    after[tuple(flow.edges.T)] = True
    for _ in range(flow.num_nodes):
        after |= after @ after
    tied = after[-1] | after[:, -1]
    kinds = [record.kind for record, other in zip(operators.records, tied, strict=False) if not other]
    return float(costs.latency_of(operators, devices.kinds[0]).mean_s[~tied[:-1]].sum()), kinds.count("dot")


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("bytes_per_s", [1e11, 1e9, 1e8])
def test_a_kraken_layer_exposes_what_is_left_of_its_sum_beside_the_attention(ways, bytes_per_s):
    config = MeshConfig((1, ways), 1, ways)
    costs = StageCostModel(cut(kraken, ways=ways), linked(bytes_per_s), models(STREAMS))
    devices = costs.places.on_submesh(Submesh(1, ways))
    (sent,) = costs.division(config).exchanges(1, "forward")
    assert (sent.kind, len(sent.counts), sent.num_bytes[0]) == ("all_reduce", 1, 4 * 128 * 256 * 4)
    whole = float(costs.sent_s(devices, config, sent, "forward") @ sent.counts)
    beside, products = independent_s(costs, devices, config, 1, "forward")
    assert products == 6  # queries, keys, values, scores, values mixed, and the way back: all of the attention
    found = dict(zip(COST_KINDS, costs.seconds(devices, config), strict=True))["collective_forward_s"][1, 1]
    assert found == pytest.approx(max(0.0, whole - beside), rel=1e-9)
    assert costs.hidden_s(devices, config)[0, 1, 1] == pytest.approx(min(whole, beside), rel=1e-9)
    assert beside > 0


def test_a_collective_begins_before_long_products_that_do_not_need_it():
    """As in a Kraken layer: a short sum is sent while attention is computed, however long that takes."""
    summed, attention, feed_forward, total = range(4)
    flow = edges((summed, total), (total, feed_forward), (attention, feed_forward))
    assert makespan_s(np.array([0.5, 10.0, 1.0]), np.array([2.0]), flow, STREAMS) == 11.5


def test_gathers_come_before_gradients_on_the_stream():
    computed, fetched, sent = [4.0, 4.0, 4.0], [1.0, 3.0, 3.0], [2.0, 2.0, 2.0]
    # 1 s for the first layer's parameters; beside each of the first two layers 3 s of the next one's, and 1 s beside
    # the second one of the first one's 2 s of gradients; then 1 s of these and 2 s beside the last, and 2 s after it.
    assert behind_all_layers(computed, fetched, sent, STREAMS) == 1 + 2


@pytest.mark.parametrize("overlap", [STREAMS, SLOW])
def test_parameters_come_behind_the_layer_before_and_gradients_go_behind_those_after(overlap):
    model = chain(3, flop=4e9, parameter_bytes=4e6, exchanged=())
    config = dataclasses.replace(DATA, zero=3)
    _, _, found = priced(model, config, overlap)
    once = 3 * (1e-5 + 4e6 / 4 / 1e10)
    assert once * 2 * 1.5 < 4e9 / 4 / 1e12  # all of it fits behind a layer
    slower = once * overlap.transfer_slowdown * (1 - 1 / overlap.compute_slowdown)
    assert found["collective_forward_s"][0, 2] == pytest.approx(once + 2 * slower)
    assert found["collective_forward_s"][1, 1] == pytest.approx(once)
    assert found["collective_backward_s"][0, 2] == pytest.approx(2 * once + 4 * slower)
    assert found["collective_backward_s"][2, 2] == pytest.approx(2 * once)


def test_all_of_tensor_parallelism_is_exposed_where_the_flow_is_not_known():
    model, config = chain(3, flop=1e10, exchanged=(1e6, 1e6)), MeshConfig((1, 4), 1, 4)
    assert np.array_equal(priced(model, config)[2]["collective_forward_s"],
                          priced(model, config, STREAMS)[2]["collective_forward_s"])  # fmt: skip


def test_the_update_gathers_when_nothing_is_left_to_hide_behind():
    model, config = chain(3, flop=1e12, parameter_bytes=4e6, exchanged=()), dataclasses.replace(DATA, zero=2)
    costs, devices, found = priced(model, config, STREAMS)
    (gathered,) = (seconds for one, seconds in costs.combined(devices, config, "step") if one.kind == "all_gather")
    last = 3 * (1e-5 + 4e6 / 4 / 1e10)
    assert found["synchronisation_s"][0, 2] == pytest.approx(gathered[0, 2] + last)


def test_a_standard_layer_exposes_its_sums_going_forward_and_hides_some_behind_gradients_of_weights():
    config = MeshConfig((1, 4), 1, 4)
    costs = StageCostModel(cut(megatron), linked(1e9), models(STREAMS))
    devices = costs.places.on_submesh(Submesh(1, 4))
    found = dict(zip(COST_KINDS, costs.seconds(devices, config), strict=True))
    forward, backward, _ = costs.hidden_s(devices, config)[:, 1, 1]
    assert forward <= 0.05 * found["collective_forward_s"][1, 1]
    assert 0 < backward < found["compute_backward_s"][1, 1]
    assert found["collective_backward_s"][1, 1] > 0


def test_a_mesh_of_both_axes_hides_both():
    config = MeshConfig((2, 2), 2, 2, {"force_batch_dim_to_mesh_dim": 0})
    alone, costs = (StageCostModel(cut(kraken, ways=2), linked(1e11), models(one)) for one in (NO_OVERLAP, STREAMS))
    devices = costs.places.on_submesh(Submesh(1, 4))
    whole, hidden = alone.seconds(devices, config), costs.hidden_s(devices, config)
    assert (hidden[:, 0, 2] > 0).all()
    assert costs.seconds(devices, config)[2:5] == pytest.approx(whole[2:5] - hidden, abs=1e-12)


@pytest.mark.parametrize(("overlap", "slowdown"), [("none", 1.3), ("gradients:1.2:1.2", 1.2)])
@pytest.mark.parametrize("bytes_per_s", [2e10, 4e11])
def test_a_ring_hides_behind_the_steps_of_attention_but_the_last(overlap, slowdown, bytes_per_s):
    size = Transformer(1024, 2, 8, 1024, 32768, kv_heads=2)
    link, device = Link(1e-5, bytes_per_s), gpu_of("H100-SXM-80GB").device()
    cluster = Cluster.uniform("8", ["a"], device, 8, link, link)
    costs = StageCostModel(
        transformer_model(size, execution("megatron"), 1), cluster,
        CostModels.named(runtime=runtime_profile("megatron", overlap)),
    )  # fmt: skip
    devices, mesh = costs.places.on_submesh(Submesh(1, 8)), MeshConfig((8, 1), 8, 1, {}, context_parallel=8)
    operators = costs.division(mesh).operators("forward")[1]
    is_attention = [record.kind == "attention" for record in operators.records]
    beside_s = 7 / 8 * costs.latency_of(operators, devices.kinds[0]).mean_s[is_attention].sum()
    (exchange,) = costs.division(mesh).exchanges(1, "forward")
    sent_s = costs.sent_s(devices, mesh, exchange, "forward").item()
    assert (sent_s < beside_s) == (bytes_per_s > 1e11)
    hidden = (2 - slowdown) * min(sent_s, beside_s)
    assert costs.hidden_s(devices, mesh)[0, 1, 1] == pytest.approx(hidden)
    assert costs.seconds(devices, mesh)[2, 1, 1] == pytest.approx(sent_s - hidden)
