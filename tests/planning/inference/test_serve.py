"""Plans for inference: both phases against hand calculations, estimates of the same step, and every other plan."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import forward_function, model_size
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.inference import Lengths, decoder, serve_plan
from alpa_dejavu.planning.inference._phases import decoding_s, prefill_s
from alpa_dejavu.problem import MeshConfig, NoPlanError, Run, Submesh
from alpa_dejavu.sharding import model_of_step
from decoders import STANDARD, WAYS, cache_bytes, forward, small, trained

SHEETS = {"calibration": "none"}
LENGTHS = Lengths.fixed(512, 128)
A100 = named_cluster("dgx-a100").hosts[0].device


known = functools.cache(decoder)


def served(model, lengths=LENGTHS, cluster="dgx-a100", **options):
    return serve_plan(model, cluster, lengths, **{**SHEETS, **options})


@pytest.mark.parametrize("name", ["gpt-1.3b", "gpt2-125m", "moe-380m", "kraken-125m-4", "kraken-125m-6"])
def test_the_cache_has_keys_and_values_of_all_layers(name):
    size = model_size(name)
    elements = 2 * size.num_blocks * size.hidden * getattr(size, "ways", 1)
    assert decoder(name).cache_bytes_per_token == 2 * elements


def test_decoding_is_bound_by_weights_and_cache_as_by_hand():
    """GPT-2's parameters in half precision, and the cache at the mean length, over the bandwidth of a data sheet."""
    width, blocks, vocabulary, batch = 768, 12, 50304, 8
    parameters = vocabulary * width + width + blocks * (12 * width**2 + 13 * width) + 2 * width
    cached = 2 * blocks * width * 2 * (512 + 64) * batch
    plan = served(known("gpt2-125m"), batch=batch, tensor_parallel=1, stages=1)
    by_hand = (2 * parameters + cached) / A100.memory_bytes_per_s
    assert plan.next_token.memory_bound_s == pytest.approx(by_hand, rel=0.01)
    assert plan.next_token.cache_s == pytest.approx(cached / A100.memory_bytes_per_s, rel=0.01)
    assert plan.next_token.seconds >= by_hand
    assert plan.memory.cache_bytes == 2 * blocks * width * 2 * 640 * batch
    assert plan.memory.weights_bytes == pytest.approx(2 * (parameters + 511 * width), rel=0.01)


def test_the_first_token_of_one_device_is_the_estimate_of_the_forward_step():
    cluster = named_cluster("dgx-a100")
    model = model_of_step(trace(forward_function("gpt2-125m", 512), batch=4), 1)
    stage = GivenStage(0, 0, Submesh(1, 1), MeshConfig((1, 1), 1, 1), (cluster.hosts[0].name,))
    step = estimate(model, cluster.part([0]), Run(1, "inference"), [stage], batch=4, **SHEETS).plan
    plan = served(known("gpt2-125m"), batch=4, tensor_parallel=1, stages=1)
    assert plan.prefill_batch == 4
    assert plan.first_token.seconds == pytest.approx(step.stages[0].forward_s, rel=1e-9)


def test_the_chosen_first_token_is_the_soonest():
    chosen = served(known("gpt-1.3b"))
    others = [served(known("gpt-1.3b"), tensor_parallel=tp, stages=p) for tp in (1, 2, 4, 8) for p in (1, 2)[: 8 // tp]]
    assert chosen.first_token.seconds == min(one.first_token.seconds for one in others)
    assert chosen.tensor_parallel > 1
    assert chosen.replicas == 8 // (chosen.tensor_parallel * chosen.stages)


def test_throughput_under_a_limit_is_the_best_of_all_plans():
    model, limit_s = small(STANDARD), 5e-4
    chosen = served(model, objective="throughput", latency_limit_s=limit_s)
    every = [
        served(model, tensor_parallel=tp, stages=p, batch=2**n) for tp in (1, 2, 4) for p in (1, 2) for n in range(11)
    ]
    kept = [one for one in every if one.next_token.seconds <= limit_s]
    assert len(kept) < len(every)
    assert chosen.tokens_per_s == pytest.approx(max(one.tokens_per_s for one in kept), rel=1e-9)
    assert chosen.next_token.seconds <= limit_s
    free = served(model, objective="throughput")
    assert free.tokens_per_s > chosen.tokens_per_s


def test_a_limit_on_the_first_token_is_kept_and_one_that_cannot_be_is_told():
    model = small(STANDARD)
    soonest = served(model)
    plan = served(model, objective="throughput", first_token_limit_s=3 * soonest.first_token.seconds)
    assert plan.high_first_token_s <= 3 * soonest.first_token.seconds
    with pytest.raises(NoPlanError, match=r"first_token_limit_s is 1e-06, but must be at least .*; allow more"):
        served(model, objective="throughput", first_token_limit_s=1e-6)
    with pytest.raises(NoPlanError, match=r"latency_limit_s is 1e-06, but must be at least"):
        served(model, latency_limit_s=1e-6)


def test_streams_hide_what_a_kraken_sends_and_not_what_a_standard_transformer_sends():
    both = {
        name: [served(small(size), overlap=overlap, tensor_parallel=4, stages=1) for overlap in ("none", "streams")]
        for name, size in (("kraken", WAYS), ("standard", STANDARD))
    }
    exposed = {}
    for name, (alone, streams) in both.items():
        for phase in ("first_token", "next_token"):
            before, after = getattr(alone, phase), getattr(streams, phase)
            assert before.hidden_s == 0
            assert after.collectives_s == pytest.approx(before.collectives_s - after.hidden_s)
            exposed[name, phase] = after.collectives_s / before.collectives_s
    assert exposed["kraken", "first_token"] < 0.8 < exposed["standard", "first_token"]
    assert exposed["kraken", "next_token"] < exposed["standard", "next_token"]
    assert both["kraken"][1].runtime == "alpa+streams"


def test_stages_share_weights_and_cache_and_micro_batches_wait_for_the_slowest():
    model = small(dataclasses.replace(STANDARD, num_blocks=4, vocabulary=512))
    one, two = (served(model, tensor_parallel=1, stages=p, batch=8) for p in (1, 2))
    assert two.memory.weights_bytes < 0.8 * one.memory.weights_bytes
    assert two.memory.cache_bytes == one.memory.cache_bytes / 2
    assert two.first_token.transfers_s > 0 == one.first_token.transfers_s
    assert two.first_token.waiting_s > 0
    assert (one.replicas, two.replicas) == (8, 4)


def test_intervals_hold_the_predicted_seconds_and_a_longer_context_takes_longer():
    options = {"tensor_parallel": 1, "stages": 1, "calibration": None}
    plans = [served(known("gpt2-125m"), Lengths.fixed(prompt, 64), **options) for prompt in (64, 512)]
    for plan in plans:
        for phase in (plan.first_token, plan.next_token):
            assert phase.interval_s[0] < phase.seconds < phase.interval_s[1]
    assert plans[0].first_token.seconds < plans[1].first_token.seconds
    assert plans[0].next_token.seconds < plans[1].next_token.seconds
    assert (plans[0].latency, plans[0].calibration) == ("kernels", "")


def test_a_distribution_is_priced_at_its_mean_and_at_95_percent():
    lengths = Lengths(((64, 16, 0.9), (1024, 256, 0.1)))
    plan = served(small(), lengths, tensor_parallel=1, stages=1)
    short, long = (served(small(), Lengths.fixed(n, 16), tensor_parallel=1, stages=1) for n in (lengths.prompt, 1024))
    assert plan.first_token.seconds == short.first_token.seconds
    assert plan.high_first_token_s == long.first_token.seconds > plan.first_token.seconds
    assert plan.memory.cache_bytes == (1024 + 256) * cache_bytes(STANDARD)


def test_the_cache_bounds_the_batch_and_the_error_says_what_fits():
    cluster = named_cluster("dgx-a100")
    host = dataclasses.replace(cluster.hosts[0], device=dataclasses.replace(A100, memory_bytes=2.0**28))
    little = dataclasses.replace(cluster, hosts=(host,))
    options = {"tensor_parallel": 1, "stages": 1, "memory_margin": 0.0}
    most = served(small(), objective="throughput", cluster=little, **options)
    assert most.memory.peak_bytes <= most.memory.limit_bytes == 2**28
    with pytest.raises(NoPlanError, match=r"batch is 2000, but must be at most about \d+: the cache of 640") as said:
        served(small(), batch=2000, cluster=little, **options)
    fits = int(str(said.value).partition("at most about ")[2].partition(":")[0])
    assert served(small(), batch=int(0.95 * fits), cluster=little, **options).batch < 2000
    with pytest.raises(NoPlanError, match="must be at most about"):
        served(small(), batch=int(1.05 * fits), cluster=little, **options)
    with pytest.raises(NoPlanError, match=r"the prompt and output are 1\d{5} tokens, but must be at most about"):
        served(small(), Lengths.fixed(64, 100_000), cluster=little, **options)
    tiny = dataclasses.replace(host, device=dataclasses.replace(A100, memory_bytes=2.0**20))
    with pytest.raises(NoPlanError, match="for the weights and temporaries of standard without any cache"):
        served(small(), cluster=dataclasses.replace(cluster, hosts=(tiny,)), **options)


def own(batch_size, tokens):
    return forward(STANDARD, batch_size, tokens)


def test_a_function_of_ones_own_is_served_as_the_same_model():
    plan = served(own, cache_bytes_per_token=cache_bytes(STANDARD), tensor_parallel=2, stages=1)
    known = served(small(), tensor_parallel=2, stages=1)
    assert plan.model == "own"
    assert plan.first_token == known.first_token
    assert plan.next_token == known.next_token


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (trained, {"cache_bytes_per_token": 8}, "model is 'trained', but must be a step without gradients"),
        (own, {}, "cache_bytes_per_token is None, but must be given for 'own'"),
        (own, {"cache_bytes_per_token": 0}, "cache_bytes_per_token is 0, but must be above 0"),
        (lambda batch_size: None, {}, "must be a function of a batch size and a number of tokens"),
        ("gpt2-125m", {"cache_bytes_per_token": 8}, "but gpt2-125m keeps 36864 bytes"),
        ("gpt2-125m", {"tensor_parallel": 5}, "tensor_parallel is 5, but must divide the 12 heads of gpt2-125m; take"),
        ("kraken-125m-4", {"tensor_parallel": 8}, "must divide the 4 ways of kraken-125m-4; take one of 1, 2, 4"),
        ("gpt2-125m", {"tensor_parallel": 12}, "tensor_parallel is 12, but must be from 1 to 8"),
        ("gpt2-125m", {"stages": 9}, "stages is 9, but must be from 1 to 8"),
        ("wresnet-1b", {}, "must be that of a language model"),
        ("gpt2-125", {}, "did you mean 'gpt2-125m'"),
        ("gpt2-125m", {"objective": "price"}, "objective is 'price', but must be one of 'latency', 'throughput'"),
        ("gpt2-125m", {"latency_limit_s": 0.0}, "latency_limit_s is 0.0, but must be above 0"),
    ],
)
def test_what_is_wrong_is_named_with_what_fits(model, options, said):
    with pytest.raises(ValueError, match=r"but|did you mean") as caught:
        served(model, **options)
    assert said in str(caught.value)


SECONDS = st.lists(st.floats(0, 1e3), min_size=1, max_size=8).map(np.array)


@given(SECONDS, st.integers(1, 8))
def test_more_micro_batches_take_no_less_and_each_takes_no_more(stage_s, count):
    assert decoding_s(stage_s, count) <= decoding_s(stage_s, count + 1)
    assert decoding_s(stage_s, count + 1) / (count + 1) <= decoding_s(stage_s, count) / count * (1 + 1e-12)
    assert prefill_s(stage_s, count) <= prefill_s(stage_s, count + 1) <= 2 * prefill_s(stage_s, count) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["gpt2-125m", "kraken-125m-4"])
def test_sizes_of_ones_own_are_served_as_those_of_a_name(name):
    by_name, by_size = decoder(name), decoder(model_size(name))
    for field in ("cache_bytes_per_token", "num_blocks", "heads", "heads_are"):
        assert getattr(by_size, field) == getattr(by_name, field)
    assert by_size.function(2, 8)[1] == by_name.function(2, 8)[1]


def test_of_large_matrices_decoding_takes_hardly_longer_than_reading_them():
    size = dataclasses.replace(STANDARD, hidden=8192, num_heads=64, num_blocks=2)
    plan = served(small(size), tensor_parallel=1, stages=1)
    assert plan.next_token.memory_bound_s < plan.next_token.seconds < 1.25 * plan.next_token.memory_bound_s


@pytest.mark.parametrize("size", [STANDARD, WAYS], ids=["standard", "kraken"])
def test_with_a_link_that_costs_nothing_more_devices_are_not_slower(size):
    plans = [served(small(size), communication="free", tensor_parallel=tp, stages=1) for tp in (1, 2, 4)]
    for fewer, more in itertools.pairwise(plans):
        assert more.first_token.seconds <= fewer.first_token.seconds
        assert more.next_token.seconds <= fewer.next_token.seconds
        assert more.memory.weights_bytes < 0.6 * fewer.memory.weights_bytes


def test_a_kraken_adds_up_once_a_layer_where_a_standard_transformer_does_twice():
    kraken, standard = (served(small(size), tensor_parallel=4, stages=1) for size in (WAYS, STANDARD))
    assert (kraken.division, standard.division) == ("engine", "even")
    for one, two in ((kraken.first_token, standard.first_token), (kraken.next_token, standard.next_token)):
        assert 0 < one.collectives_s < two.collectives_s
