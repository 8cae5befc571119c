"""Plans for inference as texts with units, for tables and pages."""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.planning.inference.serving_plan import Phase, ServingPlan

__all__ = ["phase_rows", "plan_facts"]

_HEADS = (
    "phase", "time", "90 % interval", "computing", "cache", "collectives", "transfers", "waiting", "hidden",
    "by memory",
)  # fmt: skip


def phase_rows(plan: ServingPlan) -> list[list[str]]:
    """Returns a table of both phases: the heads of its columns, then a row of as many cells for each phase."""
    phases = ("first token", plan.first_token), ("each next token", plan.next_token)
    return [list(_HEADS), *([name, *_cells(phase)] for name, phase in phases)]


def plan_facts(plan: ServingPlan) -> list[tuple[str, str]]:
    """Returns what else is said of a plan, such as its devices and their memory, as pairs of name and text."""
    memory = plan.memory
    replica = (
        f"{units.counted(plan.stages, 'stage')} of {units.counted(plan.tensor_parallel, 'device')}, "
        f"{units.counted(plan.replicas, 'replica')}, a batch of {plan.batch} on each"
    )
    divided = {"engine": "by the auto-sharding engine", "even": "evenly, as Megatron-LM does"}[plan.division]
    parts = f"weights {units.size(memory.weights_bytes)}, cache {units.size(memory.cache_bytes)}"
    return [
        ("devices", f"{replica} ({plan.num_devices} of {plan.cluster})"),
        *([("divided", divided)] if plan.tensor_parallel > 1 else []),
        ("prompts", f"{plan.prompt_tokens} tokens, 95 % up to {plan.high_prompt_tokens}, {plan.prefill_batch} at once"),
        ("first token of 95 %", f"within {units.seconds(plan.high_first_token_s)}"),
        ("throughput", f"{units.token_rate(plan.tokens_per_s)}, with {plan.output_tokens} tokens for each prompt"),
        (
            "memory of a device",
            f"{units.size(memory.peak_bytes)} of {units.size(memory.limit_bytes)}: {parts}, temporaries "
            f"{units.size(memory.temporary_bytes)}",
        ),
        ("cache", f"{units.size(plan.cache_bytes_per_token)} a token, {plan.reserved_tokens} tokens of each sequence"),
        *(("note", note) for note in plan.notes),
    ]


def _cells(phase: Phase) -> list[str]:
    low, high = phase.interval_s
    parts = (
        phase.computing_s, phase.cache_s, phase.collectives_s, phase.transfers_s, phase.waiting_s, phase.hidden_s,
        phase.memory_bound_s,
    )  # fmt: skip
    interval = f"{units.seconds(low)} to {units.seconds(high)}"
    return [units.seconds(phase.seconds), interval, *(units.seconds(part) for part in parts)]
