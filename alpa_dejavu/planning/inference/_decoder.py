"""A language model as inference sees it: its forward step, the cache that it keeps, and how devices may divide it."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import Kraken, Transformer, forward_function, known_name, model_size
from alpa_dejavu.problem import Cluster, Model

HALF = "float16"
"""The element type of a known model's weights, activations and cache."""
_HALF_BYTES = 2
_MOST_CACHE = 1e12
StepFunction = Callable[[int, int], Any]
"""Takes a batch size and a number of tokens, and returns a forward step with its abstract arguments."""
_FEW = 3
"""So many tokens can't be divided evenly among two devices or a multiple of that."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
    """A language model for inference, whose forward step is traced for the batches and lengths that are asked for."""

    name: str
    function: StepFunction  # takes a batch size and a number of tokens; returns a forward step with its arguments
    cache_bytes_per_token: float  # the bytes of the keys and values of one token in all layers
    num_blocks: int | None = None  # the transformer layers, which stages divide; None: not known
    heads: int | None = None  # what devices of a stage must divide: attention heads, or a Kraken's ways; None: unknown
    heads_are: str = "heads"  # what `heads` are, for people
    _models: dict[tuple[int, int, int], Model] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _steps: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def degrees(self, most: int) -> tuple[int, ...]:
        """Returns the numbers of devices, at most `most`, that may divide the heads or ways, else powers of two."""
        if self.heads is None:
            return tuple(2**n for n in range(most.bit_length()))
        return tuple(n for n in range(1, most + 1) if self.heads % n == 0)

    def check_degree(self, tensor_parallel: int) -> None:
        """Raises ValueError if so many tensor-parallel devices can't divide the heads or ways evenly among them."""
        if self.heads is not None and self.heads % tensor_parallel:
            fitting = ", ".join(map(str, self.degrees(self.heads)))
            raise ValueError(
                f"tensor_parallel is {tensor_parallel}, but must divide the {self.heads} {self.heads_are} of "
                f"{self.name}; take one of {fitting}"
            )

    def cache_shares(self, stages: int) -> tuple[float, ...]:
        """Returns the share of the cache that each of so many stages keeps: as many layers as it has of all."""
        if self.num_blocks is None:
            return (1 / stages,) * stages
        count, more = divmod(self.num_blocks, stages)
        return tuple((count + (n < more)) / self.num_blocks for n in range(stages))

    def model(self, batch: int, tokens: int, stages: int, by_engine: bool) -> Model:
        """Returns the layers of a forward step of so many sequences and tokens of each, cut into a layer for each
        stage; divided by the auto-sharding engine, or evenly as in Megatron-LM.

        The engine divides operators as it does for at most three tokens, which leaves nothing to divide evenly but
        weights and heads: so a device keeps the same weights in prefill and in decoding. Raises ValueError if the step
        takes gradients, or can't be cut into so many layers.
        """
        whole = self._cut(batch, tokens, stages)
        if not by_engine:
            return dataclasses.replace(whole, sharding=None)
        alone = self._alone(tokens, stages)
        assert alone.sharding is not None, "a traced model has a sharding"
        ratio = batch * tokens / min(tokens, _FEW)
        return dataclasses.replace(whole, sharding=alone.sharding.with_micro_batch(ratio))

    def _alone(self, tokens: int, stages: int) -> Model:
        """Returns the layers of a step of one sequence of a few tokens, or of one where there is only one."""
        return self._cut(1, min(tokens, _FEW), stages)

    def engine_fits(self, batch: int, tokens: int, stages: int) -> bool:
        """Returns whether the step has a few tokens' operators, so that the engine's division of these can be taken."""
        whole, alone = self._cut(batch, tokens, stages), self._alone(tokens, stages)
        return [len(layer.forward) for layer in whole.layers] == [len(layer.forward) for layer in alone.layers]

    def _cut(self, batch: int, tokens: int, stages: int) -> Model:
        from alpa_dejavu import layers, sharding

        if (batch, tokens) not in self._steps:

            def forward(batch_size: int) -> Any:
                return self.function(batch_size, tokens)

            forward.__qualname__ = self.name
            step = layers.trace(forward, batch=batch)
            if step.training:
                raise ValueError(
                    f"model is {self.name!r}, but must be a step without gradients for inference; give a function that "
                    "returns the forward step, or a known model such as 'gpt-1.3b' or 'kraken-760m-4'"
                )
            self._steps[batch, tokens] = step
        if (batch, tokens, stages) not in self._models:
            self._models[batch, tokens, stages] = sharding.model_of_step(self._steps[batch, tokens], stages)
        return self._models[batch, tokens, stages]


def decoder(model: str | Kraken | Transformer | StepFunction, cache_bytes_per_token: float | None = None) -> Decoder:
    """Returns a language model as inference sees it: a known one's name, the sizes of a Kraken or a transformer, or a
    function or its "module:function", which takes a batch size and a number of tokens and returns a step without
    gradients with its abstract arguments.

    `cache_bytes_per_token`, the keys and values of a token in all layers, is for functions alone. ValueError for what
    isn't known, is no language model, or takes other arguments, or for bytes that are lacking, wrong, or of a known
    model.
    """
    if cache_bytes_per_token is not None and not 0 < cache_bytes_per_token <= _MOST_CACHE:
        raise ValueError(
            f"cache_bytes_per_token is {cache_bytes_per_token!r}, but must be above 0 and at most {_MOST_CACHE:g}; "
            "give 2 x layers x width of keys x bytes of an element"
        )
    if isinstance(model, str) and (":" not in model or known_name(model)):
        forward_function(model)  # says which models have none
        return _known(model_size(model), model, cache_bytes_per_token)
    if isinstance(model, Kraken | Transformer):
        name = f"a transformer of {units.counted(model.num_blocks, 'layer')}"
        return _known(model, name, cache_bytes_per_token)
    from alpa_dejavu.layers import resolve

    function = resolve(model)
    name = model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))
    try:
        inspect.signature(function).bind(1, 1)
    except TypeError:
        raise ValueError(
            f"model is {name!r}, but must be a function of a batch size and a number of tokens for inference; let it "
            "return a step without gradients, (forward_step, (parameters, batch))"
        ) from None
    if cache_bytes_per_token is None:
        raise ValueError(
            f"cache_bytes_per_token is None, but must be given for {name!r}, since a function doesn't say what it "
            "keeps; give 2 x layers x width of keys x bytes of an element"
        )
    return Decoder(name, function, cache_bytes_per_token)


def _known(size: Any, name: str, cache_bytes_per_token: float | None) -> Decoder:
    ways = size.ways if isinstance(size, Kraken) else 1
    heads = size.kv_heads if isinstance(size, Transformer) else size.num_heads
    width = heads * size.head_size if isinstance(size, Transformer) else ways * size.hidden
    num_bytes = 2 * size.num_blocks * width * _HALF_BYTES
    if cache_bytes_per_token is not None and not math.isclose(cache_bytes_per_token, num_bytes):
        raise ValueError(
            f"cache_bytes_per_token is {cache_bytes_per_token!r}, but {name} keeps {units.exact_bytes(num_bytes)}; "
            "leave it out for a known model"
        )

    def function(batch_size: int, tokens: int) -> Any:
        return forward_function(size, tokens)(batch_size)

    divided = (ways, "ways") if ways > 1 else (heads, "heads")
    return Decoder(name, function, num_bytes, size.num_blocks, *divided)


_MOST_STAGES = 64


@final
@dataclasses.dataclass(frozen=True)
class ServingShape:
    """A division of a model: devices of a stage, on one host; stages of a replica; replicas; stages on a host."""

    tensor_parallel: int
    stages: int
    replicas: int
    stages_per_host: int

    def host_of(self, stage: int) -> int:
        """Returns the index of a stage's host, for the first replica."""
        return stage // self.stages_per_host


def shapes(decoder: Decoder, cluster: Cluster, tensor_parallel: int | None, stages: int | None) -> list[ServingShape]:
    """Returns all ways to divide a model on a cluster, those with fewer devices for a replica first; of unlike hosts as
    many devices are taken as the smallest has. Where none is given, all divisors of the heads or ways, and powers of
    two of stages, are tried. Raises ValueError for devices that can't divide the model or aren't on one host, or too
    many stages.
    """
    on_host = min(host.num_devices for host in cluster.hosts)
    if tensor_parallel is not None:
        if not 1 <= tensor_parallel <= on_host:
            raise ValueError(
                f"tensor_parallel is {tensor_parallel}, but must be from 1 to {on_host}, the devices of a host of "
                f"{cluster.name}; give fewer, and more stages"
            )
        decoder.check_degree(tensor_parallel)
    degrees = decoder.degrees(on_host) if tensor_parallel is None else (tensor_parallel,)
    if stages is not None:
        most = min(on_host // min(degrees) * len(cluster.hosts), decoder.num_blocks or _MOST_STAGES)
        if not 1 <= stages <= most:
            raise ValueError(
                f"stages is {stages}, but must be from 1 to {most}, by the devices of {cluster.name} and the layers of "
                f"{decoder.name}; give fewer stages"
            )
    possible, hosts = list[ServingShape](), len(cluster.hosts)
    for degree in degrees:
        per_host = on_host // degree
        most = min(per_host * hosts, decoder.num_blocks or _MOST_STAGES, _MOST_STAGES)
        for count in [2**n for n in range(most.bit_length())] if stages is None else [stages] * (stages <= most):
            # Several replicas are on each host, or one on several hosts.
            replicas = per_host // count * hosts if count <= per_host else hosts // math.ceil(count / per_host)
            possible.append(ServingShape(degree, count, replicas, per_host))
    return sorted(possible, key=lambda shape: (shape.tensor_parallel * shape.stages, shape.stages))
