"""Plans for inference, version 1, as a declared type: every key, and what it must be."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Count,
    Positive,
    Seconds,
    SecondsAboveZero,
    Text,
    Words,
    file_format,
    listed,
    said,
)


class PhaseData(TypedDict):
    """The seconds of prefill or of decoding a token, as `Phase` has them."""

    computing_s: Seconds
    cache_s: Seconds
    collectives_s: Seconds
    transfers_s: Seconds
    waiting_s: Seconds
    hidden_s: Seconds
    weights_s: Seconds
    interval_s: Annotated[list[Seconds], listed("the two ends of an interval", min_length=2, max_length=2)]


class MemoryData(TypedDict):
    """The bytes on the fullest device, as `ServingMemory` has them."""

    weights_bytes: Bytes
    cache_bytes: Bytes
    temporary_bytes: Bytes
    limit_bytes: Bytes


@file_format
class ServingData(TypedDict):
    """A plan for inference, as `ServingPlan` has it."""

    version: Annotated[Literal[1], said("1, the version of plans for inference that this release reads"), WHOLE]
    model: Text
    cluster: Text
    objective: Annotated[Literal["latency", "throughput"], said('"latency" or "throughput"')]
    prompt_tokens: Count
    output_tokens: Count
    high_prompt_tokens: Count
    reserved_tokens: Count
    tensor_parallel: Count
    stages: Count
    replicas: Count
    batch: Count
    prefill_batch: Count
    division: Annotated[Literal["engine", "even"], said('"engine" or "even"')]
    first_token: Annotated[PhaseData, said("an object: the parts of prefill")]
    next_token: Annotated[PhaseData, said("an object: the parts of decoding")]
    high_first_token_s: SecondsAboveZero
    tokens_per_s: Positive
    cache_bytes_per_token: Positive
    memory: Annotated[MemoryData, said("an object: the bytes on the fullest device")]
    latency_limit_s: Annotated[SecondsAboveZero | None, said("seconds above 0, or null")]
    first_token_limit_s: Annotated[SecondsAboveZero | None, said("seconds above 0, or null")]
    latency: Words
    communication: Words
    calibration: Words
    runtime: Words
    notes: Annotated[list[Words], listed("a list of sentences")]
