"""A transformer divided among the devices of a logical mesh as training frameworks divide it."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.range_sums import FloatArray, range_max, range_sum
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    STATES,
    WEIGHTS,
    AxisCollectives,
    Layer,
    MemoryPart,
    MemoryShares,
    MeshConfig,
    Model,
    Operators,
    PassFlow,
    Tensor,
    blocks_again,
)
from alpa_dejavu.sharding.transformers._block import LayerWork
from alpa_dejavu.sharding.transformers._exchanges import activation_exchanges, parameter_exchanges
from alpa_dejavu.sharding.transformers._execution import ALONE, EXECUTIONS, DivisionDegrees, Execution, execution
from alpa_dejavu.sharding.transformers._kept import KeptBytes, kept
from alpa_dejavu.sharding.transformers._parameters import ParameterBytes

_Of = TypeVar("_Of")
_Bytes = Callable[[KeptBytes], float]


@final
@dataclasses.dataclass(frozen=True)
class TransformerSharding:
    """The rule by which a training framework divides a transformer among devices.

    Attributes:
        size: the transformer.
        execution: how the framework runs it.
        samples: the samples of a micro-batch, over all data-parallel replicas together.
    """

    size: Transformer
    execution: Execution
    samples: float

    def on(self, layers: Sequence[Layer], config: MeshConfig) -> TransformerDivision:
        """Returns the transformer as the devices of one logical mesh divide it, at the config's ZeRO level.

        Raises:
            NoShardingError: its heads, feed-forward layers, tokens or experts can't be divided so.
        """
        return self.divided(DivisionDegrees.of(config, self.size, self.execution))

    def divided(self, degrees: DivisionDegrees = ALONE) -> TransformerDivision:
        """Returns the transformer as devices in given degrees divide it; by default one device has all of it."""
        return TransformerDivision(LayerWork(self.size, self.execution, degrees, self.samples))

    def prepare(self, configs: Iterable[MeshConfig]) -> None:
        """Checks that the transformer can be divided so: nothing has to be solved in advance.

        Raises:
            NoShardingError: its heads, feed-forward layers, tokens or experts can't be divided so.
        """
        for config in configs:
            DivisionDegrees.of(config, self.size, self.execution)

    def blocks(self, config: MeshConfig) -> list[tuple[int, float, float, float, float]]:
        """Returns for each kind of block how many there are, and the bytes that a device keeps of one all the time, for
        each micro-batch in flight, while it is computed, and of whole parameters that are at hand then.
        """
        work = self.on((), config).work
        kinds = collections.Counter(self.size.alike_layers[1:-1]).items()
        return [(count, *_bytes_of(kept(work, layer, config.remat))) for layer, count in kinds]

    def ends(self, config: MeshConfig) -> list[tuple[float, float, float, float]]:
        """Returns the same bytes of the table of embeddings, and of the head."""
        work = self.on((), config).work
        return [_bytes_of(kept(work, layer, config.remat)) for layer in (0, self.size.num_layers - 1)]

    def reckoned(self, config: MeshConfig, first: int, last: int) -> Reckoning:
        """Returns the figures that the memory of a stage of layers first..last can be checked by."""
        work, layers = self.on((), config).work, range(first, last + 1)
        copied = [0] if first and last == self.size.num_layers - 1 and (self.size.tied or self.size.predicted) else []
        own = [part for layer in (*layers, *copied) for part in work.parameter_bytes(layer)]
        groups = [group for layer in (*layers, *copied) for group in work.parameters(layer)]
        none, whole = (end.remat for end in config.remat_ends) if config.remat_share < 1 else [config.remat] * 2
        blocks = [layer for layer in layers if 0 < layer < self.size.num_layers - 1]
        again = int(blocks_again(config.remat_share, len(blocks)))
        kinds: collections.Counter[tuple[str, float]] = collections.Counter()
        for layer in layers:
            layer_bytes = kept(work, layer, whole if layer in blocks[:again] else none)
            kinds["block" if layer in blocks else "head", layer_bytes.activations + layer_bytes.entering] += 1
        return Reckoning(
            parameters=sum(group.count for group in groups),
            undivided=tuple(sum(getattr(part, name) for part in own) for name in ("weights", "gradients", "states")),
            kept=tuple((count, kind, num_bytes) for (kind, num_bytes), count in kinds.items() if num_bytes),
        )

    def with_micro_batch(self, ratio: float) -> TransformerSharding:
        """Returns the same rule for a micro-batch that is `ratio` times as large."""
        return dataclasses.replace(self, samples=self.samples * ratio)


@final
@dataclasses.dataclass(frozen=True)
class Reckoning:
    """The figures that the memory of a stage can be checked by, on each device.

    Attributes:
        parameters: how many parameters it computes with.
        undivided: the bytes of their weights, gradients and optimizer's states, if ZeRO divided nothing.
        kept: for each kind of layers how many there are, "block" or "head", and what one keeps of a micro-batch.
    """

    parameters: float
    undivided: tuple[float, ...]
    kept: tuple[tuple[int, str, float], ...]


def _bytes_of(layer: KeptBytes) -> tuple[float, float, float, float]:
    resident = layer.weights + layer.gradients + layer.states
    return resident, layer.activations + layer.entering, temporary_bytes(layer), layer.gathered


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TransformerDivision:
    """The layers of a transformer as devices of one mesh divide them; `work` is what a device has of each."""

    work: LayerWork

    @property
    def variants(self) -> Sequence[int]:
        """Returns the number of each layer: each is divided in one way, whatever stage it is in."""
        return range(self.work.size.num_layers)

    @property
    def of_stages(self) -> None:
        """Returns None: each layer is divided in one way, whatever stage it is in."""
        return None

    def operators(self, phase: str, remat: str = "none") -> Sequence[Operators]:
        """Returns for each layer what a device computes in a phase, "forward", "backward" or "step", whatever is
        computed again.
        """
        return self._operators[phase]

    @cached_property
    def _operators(self) -> dict[str, list[Operators]]:
        passes = {
            phase: self._of_layers(partial(_operators, self.work.of_replica, phase=phase))
            for phase in ("forward", "backward")
        }
        return {**passes, "step": self._of_layers(partial(self.work.operators, phase="step"))}

    def recomputed(self, remat: str) -> Sequence[Operators]:
        """Returns the operators of each block's forward pass that its backward pass runs again."""
        return self._of_layers(partial(_recomputed, self.work.of_replica, remat=remat))

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of activations of a layer in a phase; there are none in "step"."""
        return self._exchanges[phase][variant]

    @cached_property
    def _exchanges(self) -> dict[str, list[Sequence[AxisCollectives]]]:
        return {
            phase: self._of_layers(partial(activation_exchanges, self.work, phase=phase))
            for phase in ("forward", "backward", "step")
        }

    def flow(self, variant: int, phase: str) -> PassFlow | None:
        """Returns None: each of the collectives of activations is on the critical path."""
        return None

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of parameters and gradients of a stage of layers i..j in a phase, shape (L, L)."""
        experts, others = self._parameters
        return parameter_exchanges(
            self.work, phase, (lambda name: range_sum(experts[name]), lambda name: self._with_table(others[name]))
        )

    def shares(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns what each layer adds to `combined` in a phase; arrays of shape (L,)."""
        experts, others = self._parameters
        return parameter_exchanges(self.work, phase, (experts.__getitem__, others.__getitem__))

    @cached_property
    def _parameters(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """The bytes of the parameters of each layer that a device computes with, of experts and all others, by the
        names of `ParameterBytes`; shape (L,) each.
        """
        of_layers = self._of_layers(self.work.parameter_bytes)
        names = [field.name for field in dataclasses.fields(ParameterBytes)]
        experts, others = (
            {name: np.array([getattr(own[which], name) for own in of_layers]) for name in names} for which in (0, 1)
        )
        return experts, others

    def _with_table(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Returns sums over ranges of layers, where a head that is tied to the table of embeddings, or blocks that
        predict further tokens, have their own copy of it in a stage without the embeddings.
        """
        sums = range_sum(values)
        if self.work.size.tied or self.work.size.predicted:
            sums[1:, -1] += values[0]
        return sums

    def memory(self, remat: str = "none") -> MemoryShares:
        """Returns the shares of a device in what one device alone would keep, for stages of layers i..j; (L, L) each.

        What is kept by each layer is added up, and of what lives only while a layer is computed the largest counts.
        """
        own, alone = self._kept(self.work, remat), self._kept(self._alone, "none")

        def share(mine: FloatArray, of: _Bytes, ranges: Callable[[list[float]], FloatArray] = range_sum) -> FloatArray:
            whole = ranges([of(layer) for layer in alone])
            return np.divide(mine, whole, out=np.zeros_like(mine), where=whole > 0)

        def kept_share(of: _Bytes) -> FloatArray:
            return share(self._with_table([of(layer) for layer in own]), of)

        def waiting(layer: KeptBytes) -> float:
            return layer.activations + layer.entering

        def computing(layer: KeptBytes) -> float:
            return temporary_bytes(layer) + (waiting(layer) if remat == "layer" else 0.0)

        return MemoryShares(
            parameters=kept_share(lambda layer: layer.weights),
            gradients=kept_share(lambda layer: layer.gradients),
            optimizer=kept_share(lambda layer: layer.states),
            activations=share(range_sum([waiting(layer) for layer in own]), waiting),
            # Beside what layers take in what the head keeps, which isn't computed again.
            layer_inputs=share(range_sum([waiting(layer) for layer in own]), lambda layer: layer.sent),
            temporaries=share(range_max([temporary_bytes(layer) for layer in own]), computing, range_max),
            gathered=share(range_max([layer.gathered for layer in own]), lambda layer: 2 * layer.weights, range_max),
        )

    def parts(self, remat: str = "none") -> Sequence[MemoryPart]:
        """Returns what a device keeps of stages of layers i..j, part by part: they add up to the stage's bytes."""
        own = self._kept(self.work, remat)
        parts: list[tuple[str, str, Callable[[list[float]], FloatArray], _Bytes]] = [
            (WEIGHTS, "resident", self._with_table, lambda layer: layer.weights),
            (GRADIENTS, "resident", self._with_table, lambda layer: layer.gradients),
            (STATES, "resident", self._with_table, lambda layer: layer.states),
            (INPUTS, "per_micro_batch", range_sum, lambda layer: layer.entering),
            (ACTIVATIONS, "per_micro_batch", range_sum, lambda layer: layer.activations),
            ("loss, or a layer going backward", "temporary", range_max, temporary_bytes),
            ("whole parameters at hand", "temporary", range_max, lambda layer: layer.gathered),
        ]
        return [MemoryPart(name, kind, ranges([of(layer) for layer in own])) for name, kind, ranges, of in parts]

    @cached_property
    def _alone(self) -> LayerWork:
        return dataclasses.replace(self.work, degrees=ALONE)

    def _kept(self, work: LayerWork, remat: str) -> list[KeptBytes]:
        return self._of_layers(lambda layer: kept(work, layer, remat))

    def _of_layers(self, of: Callable[[int], _Of]) -> list[_Of]:
        """Calls a function once for layers that are alike, which share its result."""
        first = self.work.size.alike_layers
        results = {layer: of(layer) for layer in dict.fromkeys(first)}
        return [results[layer] for layer in first]


@functools.lru_cache(maxsize=4096)
def _operators(work: LayerWork, layer: int, phase: str) -> Operators:
    """Returns the operators of a layer in a pass; those of equal work are the same object, and predicted once."""
    return work.operators(layer, phase)


@functools.lru_cache(maxsize=4096)
def _recomputed(work: LayerWork, layer: int, remat: str) -> Operators:
    return work.recomputed(layer, remat)


def temporary_bytes(layer: KeptBytes) -> float:
    """Returns the bytes that live only while a layer is computed."""
    return max(layer.logits, layer.working)


def transformer_model(size: Transformer, runs: Execution, samples: float) -> Model:
    """Returns a training step of a transformer in layers: the table of embeddings, each block, and the head.

    Args:
        size: the transformer.
        runs: how a training framework runs it.
        samples: the samples of a micro-batch, over all data-parallel replicas together.
    """
    sharding = TransformerSharding(size, runs.in_precision(size.precision), samples)
    alone = sharding.divided()
    memory = {layer: kept(alone.work, layer, "none") for layer in dict.fromkeys(size.alike_layers)}
    layers = [_layer(size, layer, alone, memory[first]) for layer, first in enumerate(size.alike_layers)]
    tensors = [
        tensor
        for layer, first in enumerate(size.alike_layers)
        for tensor in _tensors(layer, size, memory[first])
    ]
    return Model(tuple(layers), tuple(tensors), training=True, sharding=sharding)


def trained_parameters(size: Transformer) -> float:
    """Returns how many parameters of a transformer are trained, or of its adapters, with the rows of padding.

    >>> llama = Transformer(4096, 32, 32, 128256, 8192, kv_heads=8, feed_forward=14336, lora=16, lora_targets="all")
    >>> trained_parameters(llama)  # as adapters of that rank on all linear layers are known to have
    41943040.0
    """
    alone = LayerWork(size, EXECUTIONS["megatron"], ALONE, 1.0)
    return sum(group.count for n in range(size.num_layers) for group in alone.parameters(n) if group.trained)


def training_text(size: Transformer) -> str:
    """Returns in words what of a transformer is trained, by which optimizer and in which precision, as far as it isn't
    all of it by AdamW in bfloat16; empty: it is.

    >>> training_text(Transformer(64, 4, 4, 128, 32, optimizer="muon", lora=2, frozen="4bit"))
    'by Muon; 4,096 of 279,104 parameters: adapters of rank 2 on attention; all else is frozen, products in 4 bits'
    """
    optimizer, precision = size.updated_by.title, size.computes_in.title
    parts = [f"by {optimizer}"] if size.optimizer != "adamw" else []
    parts += [f"in {precision}"] if size.precision != "bfloat16" else []
    parts += ["its weights are gathered in FP8"] if size.gather else []
    if not size.trains_all:
        last = f"the last {units.counted(size.train_last, 'block')}" if size.train_last else ""
        on = "all products" if size.lora_targets == "all" else "attention"
        behind = "last norm" if size.tied else "head"
        what = f"adapters of rank {size.lora} on {on}" if size.lora else f"{last} and the {behind}"
        what += f" of {last}" if size.lora and last else ""
        width = f", products in {size.frozen.replace('bit', ' bits')}" if size.frozen else ""
        parts += [f"{trained_parameters(size):,.0f} of {size.num_parameters:,} parameters: {what}"]
        parts += [f"all else is frozen{width}"]
    return "; ".join(parts)


def transformer_data(model: Model) -> dict[str, Any] | None:
    """Returns as JSON data what `transformer_of` makes a transformer's model of again; None for other models."""
    sharding = model.sharding
    if not isinstance(sharding, TransformerSharding):
        return None
    runs = sharding.execution
    return {
        "transformer": sharding.size.text, "execution": runs.name, "attention": runs.attention,
        "samples": sharding.samples, "sequence_parallel": runs.sequence_parallel,
    }  # fmt: skip


def transformer_of(data: Mapping[str, Any]) -> Model:
    """Returns the transformer's model that JSON data of `transformer_data` stand for.

    Raises:
        ValueError: they aren't such data.
    """
    size = Transformer.of_text(data["transformer"])
    if size is None:
        raise ValueError(f"transformer is {data['transformer']!r}, but must be the sizes of one; plan again")
    runs = execution(data["execution"])
    divided = data.get("sequence_parallel", runs.sequence_parallel)
    runs = dataclasses.replace(runs, attention=data["attention"], sequence_parallel=divided)
    return transformer_model(size, runs, float(data["samples"]))


def _layer(size: Transformer, layer: int, alone: TransformerDivision, memory: KeptBytes) -> Layer:
    name = {0: "embeddings", size.num_layers - 1: "head"}.get(layer, f"block {layer - 1}")
    forward, backward, update = (alone.operators(phase)[layer] for phase in ("forward", "backward", "step"))
    return Layer(name, forward, backward, update, backward_temporary_bytes=temporary_bytes(memory))


def _tensors(layer: int, size: Transformer, memory: KeptBytes) -> Iterator[Tensor]:
    back = 2 * size.num_layers - 1 - layer
    yield Tensor(memory.weights, "parameter", -1, (layer, back))
    yield Tensor(memory.gradients, "gradient", -1, (layer,))
    yield Tensor(memory.states, "optimizer", -1, (layer,))
    if memory.activations:
        yield Tensor(memory.activations, "activation", layer, (back,))
    if layer:
        yield Tensor(memory.sent, "activation", layer - 1, (layer, back) if memory.entering else (layer,))
    if layer > size.first_trained:
        yield Tensor(memory.sent, "activation", back, (back + 1,))
