"""Ways to serve a model on a cluster that fit into memory, with what both phases take in each."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.memory import StageMemory
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.planning.inference._decoder import Decoder, ServingShape
from alpa_dejavu.planning.inference._lengths import Lengths
from alpa_dejavu.planning.inference._phases import PassCosts, Pricer, decoding_s, prefill_s
from alpa_dejavu.planning.inference.serving_plan import ServingMemory

MOST_BATCH = 1024
"""The largest batch that is tried where the batch is left open."""
_MOST_PREFILLED = 8192
"""The most tokens of several prompts that are read at a time: with more, devices are no busier."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Serving:
    """A way to serve a model: a batch on each replica of a shape, with the costs of a micro-batch's passes: of prompts
    of mean and of high length, and of one token of each sequence.
    """

    shape: ServingShape
    batch: int
    prefill_batch: int
    lengths: Lengths
    prefill: PassCosts
    high: PassCosts
    decoding: PassCosts
    memory: ServingMemory

    @property
    def passes(self) -> int:
        """Returns in how many passes the prompts of a batch are read."""
        return math.ceil(self.batch / self.prefill_batch)

    @property
    def micro_batches(self) -> int:
        """Returns how many micro-batches go round in decoding."""
        return min(self.shape.stages, self.batch)

    @property
    def first_token_s(self) -> float:
        """Returns the seconds until all prompts of a batch, of mean length, have their first token."""
        return float(prefill_s(self.prefill.stage_s, self.passes))

    @property
    def high_first_token_s(self) -> float:
        """Returns the same for prompts of high length."""
        return float(prefill_s(self.high.stage_s, self.passes))

    @property
    def next_token_s(self) -> float:
        """Returns the seconds from one token of a sequence to the next."""
        return float(decoding_s(self.decoding.stage_s, self.micro_batches))

    @property
    def tokens_per_s(self) -> float:
        """Returns the output tokens per second of all replicas, each of which reads a batch, then decodes it."""
        output = self.lengths.output
        seconds = self.first_token_s + (output - 1) * self.next_token_s
        return self.shape.replicas * self.batch * output / seconds


@final
class ServingSearch:
    """A search of ways to serve requests of given lengths, which says of each whether it fits into memory."""

    def __init__(self, decoder: Decoder, pricer: Pricer, lengths: Lengths, margin: MemoryMargin) -> None:
        self._decoder, self._pricer, self.lengths, self._margin = decoder, pricer, lengths, margin
        self._by_engine: dict[ServingShape, bool] = {}
        self.limit_bytes = min(map(margin.usable_bytes, pricer.left))

    def candidates(self, shape: ServingShape, batch: int | None) -> list[Serving]:
        """Returns the ways to serve on a shape that fit: with the given batch, or each power of two."""
        fitting = list[Serving]()
        for size in [2**n for n in range(MOST_BATCH.bit_length())] if batch is None else [batch]:
            best = self._best(shape, size)
            if best is None:
                break
            fitting.append(best)
        return fitting

    def _best(self, shape: ServingShape, batch: int) -> Serving | None:
        """Returns the way to read prompts in parts with which the last first token comes soonest; None if none fits."""
        if self._cached(shape, batch).max() > self.limit_bytes:
            return None
        fitting, group = list[Serving](), math.ceil(batch / min(shape.stages, batch))
        for prefill_batch in (2**n for n in range(group.bit_length())):
            if prefill_batch > 1 and prefill_batch * self.lengths.high_prompt > _MOST_PREFILLED:
                break
            priced = self._priced(shape, batch, prefill_batch)
            if priced.memory.peak_bytes > self.limit_bytes:
                break
            fitting.append(priced)
        return min(fitting, key=lambda serving: serving.first_token_s, default=None)

    def _priced(self, shape: ServingShape, batch: int, prefill_batch: int) -> Serving:
        lengths, pricer = self.lengths, self._pricer
        if shape not in self._by_engine:
            self._by_engine[shape] = pricer.by_engine(shape, lengths.prompt)
        by_engine, group = self._by_engine[shape], math.ceil(batch / min(shape.stages, batch))
        prefill = high = pricer.passed(shape, prefill_batch, lengths.prompt, by_engine)
        if lengths.high_prompt != lengths.prompt:
            high = pricer.passed(shape, prefill_batch, lengths.high_prompt, by_engine)
        decoding = pricer.passed(shape, group, 1, by_engine, lengths.context)
        memory = self._memory(shape, batch, (prefill, high, decoding))
        return Serving(shape, batch, prefill_batch, lengths, prefill, high, decoding, memory)

    def _cached(self, shape: ServingShape, batch: int) -> FloatArray:
        """Returns the bytes of the cache on each device of each stage, shape (P,)."""
        shares = np.array(self._decoder.cache_shares(shape.stages)) / shape.tensor_parallel
        return np.asarray(shares * self._decoder.cache_bytes_per_token * batch * self.lengths.high_total)

    def _memory(self, shape: ServingShape, batch: int, passes: tuple[PassCosts, ...]) -> ServingMemory:
        """Returns the bytes on a device of the fullest stage, raised as far as the margin says."""
        weights = np.max([costs.weights_bytes for costs in passes], axis=0)
        temporary = np.max([costs.temporary_bytes for costs in passes], axis=0)
        cached = self._cached(shape, batch)
        needed = [self._margin.needed(StageMemory(part, np.zeros_like(part), temporary)) for part in (weights, cached)]
        parts = needed[0].resident, needed[1].resident, needed[0].temporary
        fullest = int(np.argmax(sum(parts[1:], parts[0])))
        weights_bytes, cache_bytes, temporary_bytes = (float(part[fullest]) for part in parts)
        return ServingMemory(weights_bytes, cache_bytes, temporary_bytes, self.limit_bytes)

    def lacking(self, shape: ServingShape, batch: int) -> tuple[float, float, ServingMemory]:
        """Returns about how many sequences would fit on a shape, how many tokens of each of a batch, and one sequence's
        memory; below one of either, the model itself doesn't fit.
        """
        memory = self._priced(shape, 1, 1).memory
        sequences = (self.limit_bytes - memory.weights_bytes - memory.temporary_bytes) / memory.cache_bytes
        return sequences, sequences / batch * self.lengths.high_total, memory
