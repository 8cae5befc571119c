"""Chooses how a model is served on a cluster: the soonest first token, or the most tokens per second."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import least, ordered
from alpa_dejavu.calibration import Calibration, check_choice, prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import DEFAULT_RISK, MemoryMargin
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile, runtime_profile
from alpa_dejavu.layers.models import Kraken
from alpa_dejavu.planning.inference._candidates import Serving, ServingSearch
from alpa_dejavu.planning.inference._decoder import Decoder, ServingShape, decoder, shapes
from alpa_dejavu.planning.inference._lengths import Lengths
from alpa_dejavu.planning.inference._phases import PassCosts, Pricer, decoding_s, phase_of, prefill_s
from alpa_dejavu.planning.inference.serving_plan import OBJECTIVES, ServingPlan
from alpa_dejavu.planning.search.uncertainty._steps import StageDraws, interval
from alpa_dejavu.problem import Cluster, NoPlanError
from alpa_dejavu.problem.checks import one_of
from alpa_dejavu.problem.limits import check_sizes


def serve_plan(
    model: str | Kraken | Callable[[int, int], Any] | Decoder,
    cluster: str | Cluster,
    lengths: Lengths,
    hosts: int = 1,
    *,
    objective: str = "latency",
    batch: int | None = None,
    latency_limit_s: float | None = None,
    first_token_limit_s: float | None = None,
    tensor_parallel: int | None = None,
    stages: int | None = None,
    cache_bytes_per_token: float | None = None,
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    risk: float = DEFAULT_RISK,
    memory_margin: float | None = None,
    calibration: str | os.PathLike[str] | Calibration | None = None,
    runtime: str | RuntimeProfile = ALPA,
    overlap: str | Overlap | None = None,
) -> ServingPlan:
    """Returns the best plan for inference with a language model on a cluster.

    All tensor-parallel degrees that divide the model's heads or ways within a host are priced, with all numbers of
    stages that are powers of two, and as many replicas as the devices are enough for.

    Args:
        model: the name of a known language model, or the sizes of a Kraken or standard transformer; a function of a
            batch size and a number of tokens that returns a step without gradients, or its "module:function"; or a
            `Decoder`.
        cluster, hosts: a machine type's name or a file's path, and how many such machines; or a `Cluster`.
        lengths: the lengths of prompts and outputs.
        objective: "latency": the first token comes soonest, and then each next one; "throughput": the most output
            tokens per second.
        batch: the sequences that each replica decodes together; None: 1 for "latency", and for "throughput" the power
            of two with the most tokens per second.
        latency_limit_s: the longest time from one output token to the next; None: any.
        first_token_limit_s: the longest time until 95 % of the prompts have their first token; None: any.
        tensor_parallel, stages: the devices of a stage, and the stages of a replica; None chooses.
        cache_bytes_per_token: for a function: the bytes of the keys and values of one token in all layers.
        latency, communication, risk, memory_margin, calibration, runtime, overlap: as for `plan_model`.

    Raises:
        NoPlanError: nothing fits into memory, or is within the limits; says what would.
        ValueError: an unknown name or a wrong number; a model that takes gradients, or that so many devices can't
            divide.
    """
    one_of("serve_plan", "objective", objective, OBJECTIVES)
    check_sizes(batch or 1, None, None)
    for name, limit in (("latency_limit_s", latency_limit_s), ("first_token_limit_s", first_token_limit_s)):
        if limit is not None and not limit > 0:
            raise ValueError(f"{name} is {limit!r}, but must be above 0; leave it out where any time will do")
    checked = check_choice(calibration, latency, communication)
    named = named_cluster(cluster, hosts) if isinstance(cluster, str) else cluster
    served = model if isinstance(model, Decoder) else decoder(model, cache_bytes_per_token)
    priced = prices(named, checked, latency, communication, runtime_profile(runtime, overlap))
    margin = MemoryMargin(risk, priced.residuals(None), memory_margin)
    search = ServingSearch(served, Pricer(served, priced), lengths, margin)
    possible = shapes(served, priced.cluster, tensor_parallel, stages)
    asked = 1 if batch is None and objective == "latency" else batch
    candidates = [candidate for shape in possible for candidate in search.candidates(shape, asked)]
    if not candidates:
        raise _too_large(served, search, possible, asked or 1)
    first_s, next_s = operator.attrgetter("high_first_token_s"), operator.attrgetter("next_token_s")
    candidates = _within(candidates, "first_token_limit_s", first_token_limit_s, first_s)
    candidates = _within(candidates, "latency_limit_s", latency_limit_s, next_s)
    # Of equal ones that with the sooner next token is the best, and then that with fewer devices.
    candidates = ordered(candidates, next_s)
    if objective == "throughput":
        best = least(candidates, lambda candidate: -candidate.tokens_per_s)
    else:
        best = least(candidates, lambda candidate: candidate.first_token_s)
    shape, names = best.shape, priced.named()
    first, following, source = _intervals(best)
    return ServingPlan(
        model=served.name,
        cluster=priced.cluster.name,
        objective=objective,
        prompt_tokens=lengths.prompt,
        output_tokens=lengths.output,
        high_prompt_tokens=lengths.high_prompt,
        reserved_tokens=lengths.high_total,
        tensor_parallel=shape.tensor_parallel,
        stages=shape.stages,
        replicas=shape.replicas,
        batch=best.batch,
        prefill_batch=best.prefill_batch,
        division="even" if best.decoding.costs.model.sharding is None else "engine",
        first_token=phase_of(best.prefill, best.first_token_s, first),
        next_token=phase_of(best.decoding, best.next_token_s, following),
        high_first_token_s=best.high_first_token_s,
        tokens_per_s=best.tokens_per_s,
        cache_bytes_per_token=served.cache_bytes_per_token,
        memory=best.memory,
        latency_limit_s=latency_limit_s,
        first_token_limit_s=first_token_limit_s,
        latency=names.latency,
        communication=names.communication,
        calibration=names.calibration,
        runtime=names.runtime,
        notes=tuple(_notes(best, priced.cluster, source)),
    )


def _within(
    candidates: list[Serving], name: str, limit_s: float | None, seconds: Callable[[Serving], float]
) -> list[Serving]:
    """Returns the candidates within a limit. Raises NoPlanError if there are none; says what limit could be kept."""
    within = [candidate for candidate in candidates if limit_s is None or seconds(candidate) <= limit_s]
    if within:
        return within
    soonest = least(candidates, seconds)
    raise NoPlanError(
        f"{name} is {limit_s!r}, but must be at least {seconds(soonest):.4g}, what a batch of {soonest.batch} takes "
        f"with {soonest.shape.tensor_parallel} tensor-parallel devices and {soonest.shape.stages} stages; "
        "allow more, or take faster devices"
    )


def _too_large(served: Decoder, search: ServingSearch, possible: Sequence[ServingShape], batch: int) -> NoPlanError:
    """Returns the error that says what would fit into memory."""
    tokens = search.lengths.high_total
    lacking = (search.lacking(shape, batch) for shape in possible)
    sequences, context, memory = max(lacking, key=lambda figures: figures[0])
    limit = units.size(search.limit_bytes)
    if sequences <= 0:
        needed = units.size(memory.weights_bytes + memory.temporary_bytes)
        return NoPlanError(
            f"the memory of a device is {limit}, but must be at least {needed} for the weights and temporaries of "
            f"{served.name} without any cache; take more devices of a host for a stage, more stages, or more hosts"
        )
    cache = units.size(memory.cache_bytes)
    why = f"the cache of {tokens} tokens takes {cache} beside the weights on a device of {limit}"
    if sequences < 1:
        return NoPlanError(
            f"the prompt and output are {tokens} tokens, but must be at most about {int(context * batch)}: {why}; "
            "take shorter ones, or more devices"
        )
    return NoPlanError(
        f"batch is {batch}, but must be at most about {int(sequences)}: {why}; give a smaller batch, at most about "
        f"{int(context)} tokens of prompt and output, or more devices"
    )


def _notes(best: Serving, cluster: Cluster, source: str) -> list[str]:
    notes = [
        f"the intervals are by {source}",
        "only the model's own work is priced: no tokenizer, no sampling, no queue of requests",
    ]
    if len(best.lengths.requests) > 1:
        notes.append("prefill is priced at the mean length of prompts, decoding at the mean of all tokens before")
    if any(kinds_of(cluster)):
        notes.append("hosts are unlike: every stage is taken to be on the slowest kind of device")
    return notes


def _intervals(chosen: Serving) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Returns the 90 % intervals of both phases' seconds, which err as training steps do, and where they are from."""
    passes = chosen.prefill, chosen.decoding
    draws = StageDraws([(costs.costs, costs.devices, costs.config) for costs in passes])
    first, following = (_drawn_s(costs, draws, n, chosen.shape) for n, costs in enumerate(passes))
    first_s, following_s = prefill_s(first, chosen.passes), decoding_s(following, chosen.micro_batches)
    return interval(first_s), interval(following_s), draws.source


def _drawn_s(costs: PassCosts, draws: StageDraws, number: int, shape: ServingShape) -> FloatArray:
    """Returns the seconds of a pass in each stage in K draws, shape (K, P)."""
    stages = []
    for stage in range(shape.stages):
        on_devices = costs.computing_s[stage] + costs.collectives_s[stage]
        drawn = on_devices * draws.of_layer(number, stage) + costs.cache_s[stage] * draws.of_memory()
        if stage + 1 < shape.stages:
            ends = shape.host_of(stage), shape.host_of(stage + 1)
            drawn = drawn + costs.transfers_s[stage] * draws.of_sends(ends)
        stages.append(drawn)
    return np.stack(stages, axis=-1)
