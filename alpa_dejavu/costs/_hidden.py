"""The seconds of collectives that hide behind computing, where a device communicates on a second stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu.costs._streams import behind_layers_s, makespan_s
from alpa_dejavu.costs.overlap import Overlap
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.problem import TENSOR, AxisCollectives, Device, Division, MeshConfig, Operators, PassFlow

if TYPE_CHECKING:
    from alpa_dejavu.costs.stage_costs import StageCostModel

_FETCHED = ("all_gather",)
"""Collectives of a pass that bring a layer's parameters (ZeRO-3): they run behind the layer that comes before it."""
_SENT = _SUMMED = ("all_reduce", "reduce_scatter")
"""Collectives of a backward pass that add up a layer's gradients (ZeRO-3), which run behind the layers before it; and
those of a step."""


@final
class HiddenSeconds:
    """A calculator of the seconds of a stage's collectives that hide behind its computing.

    The collectives of activations hide behind independent operators of their layer's pass. What a stage sends for all
    its layers hides behind other layers, in buckets of a layer each. Optimizer updates hide nothing.
    """

    def __init__(self, costs: StageCostModel, overlap: Overlap) -> None:
        self._costs, self._overlap = costs, overlap
        self._passes: dict[tuple[object, ...], tuple[FloatArray, FloatArray]] = {}
        self._known: dict[tuple[object, ...], FloatArray] = {}
        self._simulated: dict[tuple[object, ...], tuple[PassFlow, Operators, float]] = {}

    def seconds(self, devices: StageDevices, config: MeshConfig) -> FloatArray:
        """Returns the hidden seconds of each stage of layers i..j: of a micro-batch's forward and backward pass, and of
        a step's synchronisation; shape (3, L, L).
        """
        key = devices, config.division_key, config.remat
        if key not in self._known:
            self._known[key] = self._seconds(devices, config)
        return self._known[key]

    def _seconds(self, devices: StageDevices, config: MeshConfig) -> FloatArray:
        costs, division, size = self._costs, self._costs.division(config), self._costs.model.num_layers

        def together(phase: str, kinds: Sequence[str]) -> _Buckets:
            wholes = costs.combined(devices, config, phase)
            pairs = zip(wholes, division.shares(phase), strict=True)
            sent = [(s, costs.sent_s(devices, config, share, phase)) for (_, s), share in pairs if share.kind in kinds]
            return _Buckets(sent, division, size)

        hidden_s = np.zeros((3, size, size))
        hidden, ahead = self._of_pass(devices, config, "forward")
        fetched = together("forward", _FETCHED)
        hidden_s[0] = stage_sum(hidden, division.of_stages)
        hidden_s[0] += _hidden(fetched.total_s, self._behind(division, range(size), ahead, fetched, []))
        if not costs.model.training:
            return hidden_s
        again = costs.exchanges_again(config, devices.kinds[0])
        hidden_back, free_back = self._of_pass(devices, config, "backward")
        shares = np.stack([costs.again(config, device) for device in devices.kinds])
        hidden, free = hidden_back + hidden * again, free_back + ahead * shares
        fetched, sent = (together("backward", kinds) for kinds in (_FETCHED, _SENT))
        gradients, reverse = together("step", _SUMMED), range(size - 1, -1, -1)
        exposed = self._behind(division, reverse, free, fetched, [sent])
        # In the last micro-batch gradients are sent as well, on the same stream.
        last = self._behind(division, reverse, free, fetched, [sent, gradients])
        hidden_s[1] = stage_sum(hidden, division.of_stages) + _hidden(fetched.total_s + sent.total_s, exposed)
        hidden_s[2] = _hidden(gradients.total_s, last - exposed)
        if self._overlap.kind in ("gradients", "tensor"):
            # Updated parameters are gathered layer by layer, behind the first micro-batch's forward pass.
            updated = together("step", _FETCHED)
            hidden_s[2] += _hidden(updated.total_s, self._behind(division, range(size), ahead, updated, []))
        return hidden_s

    def _of_pass(self, devices: StageDevices, config: MeshConfig, phase: str) -> tuple[FloatArray, FloatArray]:
        """Returns for each variant the hidden seconds of its own collectives in a pass, and for each kind of device the
        computing beside which there is nothing yet, shape (kinds, V).
        """
        key = devices, config.division_key, phase
        if key not in self._passes:
            division = self._costs.division(config)
            operators = division.operators(phase)
            computed = [
                np.array([self._computed_s(of_variant, device, config).sum() for of_variant in operators])
                for device in devices.kinds
            ]
            hidden = np.array([
                self._hidden_of_variant(devices, config, n, operators[n], phase) for n in range(len(operators))
            ])  # fmt: skip
            self._passes[key] = hidden, np.maximum(np.stack(computed) - hidden, 0.0)
        return self._passes[key]

    def _hidden_of_variant(
        self, devices: StageDevices, config: MeshConfig, number: int, operators: Operators, phase: str
    ) -> float:
        """Returns the seconds of collectives of activations that hide in a pass of a layer variant."""
        division = self._costs.division(config)
        if self._overlap.streams:
            return self._hidden_in_layer(devices, config, division.flow(number, phase), operators, phase)
        share = self._overlap.hidden_tensor_share
        exchanges = (
            [exchange for exchange in division.exchanges(number, phase) if exchange.axis == TENSOR] if share else []
        )
        return share * float(sum(self._sent_s(devices, config, exchange, phase).sum() for exchange in exchanges))

    def _computed_s(self, operators: Operators, device: Device, config: MeshConfig) -> FloatArray:
        return self._costs.latency_of(operators, device).mean_s * self._costs.crowding(device, config)

    def _hidden_in_layer(
        self, devices: StageDevices, config: MeshConfig, flow: PassFlow | None, operators: Operators, phase: str
    ) -> float:
        """Returns the seconds of one layer's collectives that hide in a pass on the device where least does."""
        if flow is None or not flow.collectives:
            return 0.0
        key = devices, config.division_key, id(flow), id(operators), phase
        if key not in self._simulated:
            sent = np.concatenate([self._sent_s(devices, config, exchange, phase) for exchange in flow.collectives])
            hidden = sent.sum()
            for device in devices.kinds:
                computed = self._computed_s(operators, device, config)
                together = makespan_s(computed, sent, flow.edges, self._overlap)
                hidden = min(hidden, float(computed.sum() + sent.sum()) - together)
            self._simulated[key] = flow, operators, max(float(hidden), 0.0)  # kept, so that their ids stay theirs
        return self._simulated[key][2]

    def _sent_s(self, devices: StageDevices, config: MeshConfig, exchange: AxisCollectives, phase: str) -> FloatArray:
        if not exchange.counts.any():
            return np.zeros_like(exchange.counts)
        return self._costs.sent_s(devices, config, exchange, phase) * exchange.counts

    def _behind(
        self, division: Division, layers: range, free: FloatArray, fetched: _Buckets, sent: Sequence[_Buckets]
    ) -> FloatArray:
        """Returns the seconds by which a pass over layers takes longer than its computing, shape (L, L), on the device
        on which that is most.
        """

        def computed(of_device: FloatArray, n: int) -> FloatArray:
            return _in_stages(of_device, n, division, len(layers))

        def all_sent(n: int) -> FloatArray:
            return np.asarray(sum((buckets.of_layer(n) for buckets in sent), np.zeros_like(fetched.total_s)))

        exposed = [
            behind_layers_s(layers, functools.partial(computed, of_device), fetched.of_layer, all_sent, self._overlap)
            for of_device in free
        ]
        return np.asarray(np.max(exposed, axis=0))


@final
class _Buckets:
    """A pool of what stages of layers i..j of L send for all their layers together, in a bucket for each layer, which
    takes as long as what its layer sends would take alone, or longer where the whole takes longer than its parts.

    `sent` has for each collective the seconds of all layers of a stage together, shape (L, L), and of each layer
    variant alone, shape (V,).
    """

    def __init__(self, sent: Sequence[tuple[FloatArray, FloatArray]], division: Division, num_layers: int) -> None:
        self.total_s: FloatArray = sum((whole for whole, _ in sent), np.zeros((num_layers, num_layers)))
        self._division = division
        self._parts: list[tuple[FloatArray, FloatArray]] = []
        for whole, alone in sent:
            parts = stage_sum(alone, division.of_stages)
            longer = np.divide(whole, parts, out=np.ones_like(whole), where=parts > 0)
            self._parts.append((np.maximum(longer, 1.0), alone))

    def of_layer(self, n: int) -> FloatArray:
        """Returns the seconds of a layer's bucket in each stage, shape (L, L); 0 for stages without the layer."""
        seconds = np.zeros_like(self.total_s)
        for longer, alone in self._parts:
            seconds += longer * _in_stages(alone, n, self._division, len(seconds))
        return seconds


def _in_stages(values: FloatArray, n: int, division: Division, num_layers: int) -> FloatArray:
    """Returns a layer's value in each stage of layers i..j, given each variant's value; 0 for stages without it."""
    in_stages = np.zeros((num_layers, num_layers))
    if division.of_stages is None:
        in_stages[: n + 1, n:] = values[n]
    else:
        in_stages[: n + 1, n:] = values[division.of_stages[: n + 1, n:, n]]
    return in_stages


def _hidden(total_s: FloatArray, exposed_s: FloatArray) -> FloatArray:
    """Returns what is hidden of collectives, given the seconds by which computing ends later for them."""
    hidden_s: FloatArray = np.clip(total_s - exposed_s, 0.0, total_s)
    return hidden_s
