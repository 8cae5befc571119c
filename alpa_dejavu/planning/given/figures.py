"""The figures of a plan that are read first: its parallelism and batch, its step with tokens, utilisation and price,
and the memory of its fullest device, laid out so that they can be checked by hand.

In: a plan, and what it was made from, if that is there. Out: texts with their names, which the command line and reports
show alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import tokens_of_sample, transformer_size
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search._candidate import config_of_stage
from alpa_dejavu.planning.search.models.named_model import sized_transformer
from alpa_dejavu.plans.stage_rows import parallelism_text
from alpa_dejavu.plans.table import fullest_parts, lacking
from alpa_dejavu.problem import ACTIVATIONS, GRADIENTS, INPUTS, STATES, WEIGHTS, Plan, StagePlan
from alpa_dejavu.sharding.transformers import Reckoning, TransformerSharding, training_text

__all__ = ["batch_text", "first_facts"]

_PARAMETERS, _IN_FLIGHT = (WEIGHTS, GRADIENTS, STATES), (INPUTS, ACTIVATIONS)
_TEMPORARIES = "temporaries "


def first_facts(plan: Plan, planned: PlanningResult | None = None) -> list[tuple[str, str]]:
    """Returns the figures of a plan that are read first, each with its name; `planned` is its result, where it is there
    to tell utilisation and price.
    """
    size = transformer_size(plan.model)
    trained = "" if size is None else training_text(size)
    return [
        ("parallelism", parallelism_text(plan)),
        *_batch(plan),
        *([("trained", trained)] if trained else []),
        ("iteration time", ", ".join([units.seconds(plan.step_s), *_rates(plan)])),
        *([] if planned is None else _of_result(planned)),
        *_memory(plan),
        *(("doesn't fit", sentence) for sentence in lacking(plan)),
    ]


def _batch(plan: Plan) -> Iterable[tuple[str, str]]:
    if plan.batch is not None:
        length = tokens_of_sample(plan.model)
        tokens = "" if length is None else f" of {units.counted(length, 'token')}"
        yield "batch", f"{units.counted(plan.batch, 'sample')}{tokens}: {batch_text(plan)}"


def batch_text(plan: Plan) -> str:
    """Returns how a plan's batch is cut: the samples of a replica's micro-batch, how many of them, and the replicas."""
    replicas = [stage.data_parallel / stage.context_parallel for stage in plan.on_submeshes]
    samples = [(plan.batch or 0) / plan.num_micro_batches / count for count in replicas]
    data = "" if max(replicas) == 1 else f" x data {units.span(replicas, units.number)}"
    return f"micro-batch {units.span(samples, units.number)} x {plan.num_micro_batches}{data}"


def _rates(plan: Plan) -> list[str]:
    if plan.batch is None:
        return []
    samples_per_s, length = plan.batch / plan.step_s, tokens_of_sample(plan.model)
    if length is None:
        return [units.sample_rate(samples_per_s)]
    tokens_per_s = length * samples_per_s
    return [units.token_rate(tokens_per_s), f"{units.token_rate(tokens_per_s / plan.num_devices)} a device"]


def _of_result(planned: PlanningResult) -> Iterable[tuple[str, str]]:
    plan, length = planned.plan, tokens_of_sample(planned.plan.model)
    rate = units.part(planned.flop_per_s / plan.num_devices, planned.device_flop_per_s, units.flop_rate)
    by = "" if planned.flop_by_rule else ", by its traced products"
    yield "MFU", f"{100 * planned.flop_utilisation:.1f} %: {rate} a device in {planned.product_dtype}{by}"
    if (price := planned.price_per_step) is not None:
        tokens = ""
        if plan.batch is not None and length is not None:
            billion = price / plan.batch / length * 1e9
            tokens = f"; of a billion tokens {units.price(billion)}"
        yield "price of a step", units.price(price) + tokens


def _memory(plan: Plan) -> Iterable[tuple[str, str]]:
    """Yields what a device of the fullest stage keeps, and of each part how it can be reckoned."""
    fullest = fullest_parts(plan)
    stage = plan.stages[fullest.stage]
    chunks = [plan.stages[n] for n in plan.stages_on[plan.submesh_of[fullest.stage]]]
    where = "" if len(plan.stages) == 1 else f", stage {fullest.stage} (the fullest)"
    used = units.part(fullest.total, fullest.limit_bytes, units.size)
    yield "memory", f"{used} a device{where}"
    reckoned, of_micro_batch = _reckoned(plan, chunks), sum(chunk.activation_bytes for chunk in chunks)
    parts = dict(fullest.parts)
    if stage.memory_parts:
        own = [parts.pop(name, 0.0) for name in _PARAMETERS]
        kept = math.fsum(parts.pop(name, 0.0) for name in _IN_FLIGHT)
        yield "  parameters", _parameters_text(own, reckoned)
    else:
        (name, resident), (_, kept), *others = parts.items()
        yield "  parameters", f"{units.size(resident)}: {name}"
        parts = dict(others)
    if kept and of_micro_batch:
        yield "  activations", _activations_text(kept, of_micro_batch, reckoned)
    yield from (
        ("  temporaries", f"{units.size(num_bytes)}: {name.removeprefix(_TEMPORARIES)}")
        for name, num_bytes in parts.items()
    )


def _parameters_text(own: Sequence[float], reckoned: Sequence[Reckoning]) -> str:
    """Returns the bytes of weights, gradients and states, and how many these are of each parameter on a device."""
    total, count = units.size(sum(own)), sum(stage.parameters for stage in reckoned)
    if not count:
        parts = zip(_PARAMETERS, own, strict=True)
        return f"{total}: " + ", ".join(f"{name} {units.size(num_bytes)}" for name, num_bytes in parts if num_bytes)
    undivided = [math.fsum(values) for values in zip(*(stage.undivided for stage in reckoned), strict=True)]
    texts = [_divided(mine / count, whole / count) for mine, whole in zip(own, undivided, strict=True)]
    named = ", ".join(f"{name} {text}" for name, text in zip(_PARAMETERS, texts, strict=True) if text != "0")
    return f"{total}: {units.times_bytes(count, sum(own) / count)} ({named})"


def _divided(own: float, whole: float) -> str:
    """Returns bytes of a parameter, and what divides them.

    >>> _divided(4.0, 4.0), _divided(1.5, 12.0)
    ('4', '12/8')
    """
    if not own or math.isclose(own, whole, rel_tol=1e-6):
        return units.number(own)
    return f"{units.number(whole)}/{units.number(whole / own)}"


def _activations_text(kept: float, of_micro_batch: float, reckoned: Sequence[Reckoning]) -> str:
    """Returns the bytes of activations: those of each kind of layers in a micro-batch, and how many are in flight."""
    alike: dict[tuple[str, str], int] = {}
    for count, kind, num_bytes in itertools.chain.from_iterable(stage.kept for stage in reckoned):
        alike[kind, units.traffic(num_bytes)] = alike.get((kind, units.traffic(num_bytes)), 0) + count
    of_layers = " + ".join(f"{units.counted(count, kind)} x {text}" for (kind, text), count in alike.items())
    of_layers = of_layers or units.traffic(of_micro_batch)
    times = units.number(kept / of_micro_batch)
    flight = f"{times} micro-batch{'' if times == '1' else 'es'} in flight"
    return f"{units.size(kept)}: {flight} x {f'({of_layers})' if ' + ' in of_layers else of_layers}"


def _reckoned(plan: Plan, stages: Sequence[StagePlan]) -> list[Reckoning]:
    """Returns the figures by which the stages of a transformer by its sizes can be checked; none of other models, and
    where they aren't what the plan says, which may have been priced otherwise.
    """
    if plan.batch is None or plan.priced_by is None:
        return []
    micro_batch, runtime = plan.batch // plan.num_micro_batches, plan.priced_by.runtime
    attentions = dict.fromkeys((plan.priced_by.attention, "fused", "plain"))
    for attention, divided in itertools.product(attentions, (True, False)):
        source = sized_transformer(plan.model, runtime, micro_batch, attention, divided)
        if source is None or source.size.num_layers != plan.num_layers:
            return []
        sharding = source.exact(plan.num_layers, micro_batch).sharding
        assert isinstance(sharding, TransformerSharding), "a transformer by its sizes is divided as one"
        reckoned = [sharding.reckoned(config_of_stage(stage), *stage.layers) for stage in stages]
        sums = [sum(count * num_bytes for count, _, num_bytes in stage.kept) for stage in reckoned]
        if all(
            math.isclose(num_bytes, stage.activation_bytes, rel_tol=1e-6)
            for num_bytes, stage in zip(sums, stages, strict=True)
        ):
            return reckoned
    return []
