"""What crosses from stage to stage: for all ranges of layers, what a stage takes in forward and backward."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu._ranges import FloatArray, touched_sum
from alpa_dejavu.communication import CommunicationModel, Group
from alpa_dejavu.problem import Cluster, Model, Submesh

__all__ = ["Boundary"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Boundary:
    """For a stage of layers i..j, bytes and number of tensors that one micro-batch brings in, each of shape (L, L).

    Forward they come from stages before it, backward from stages after it. A tensor counts once for a stage, however
    many of the stage's layers use it.
    """

    forward_bytes: FloatArray
    forward_tensors: FloatArray
    backward_bytes: FloatArray
    backward_tensors: FloatArray

    @classmethod
    def of(cls, model: Model) -> Boundary:
        """By the tensors of a model."""
        num_layers = model.num_layers
        ahead: list[tuple[float, int, list[int]]] = []
        back: list[tuple[float, int, list[int]]] = []
        for tensor in model.tensors:
            if tensor.role != "activation":
                continue
            made = model.layer_of(tensor.producer)
            users = sorted({model.layer_of(position) for position in tensor.users})
            if tensor.producer < num_layers:
                ahead.append((tensor.num_bytes, made + 1, [u for u in users if u > made]))
            else:
                mirrored = sorted(num_layers - 1 - u for u in users if u < made)
                back.append((tensor.num_bytes, num_layers - made, mirrored))
        return cls(
            touched_sum(num_layers, ahead),
            touched_sum(num_layers, [(1.0, start, users) for _, start, users in ahead]),
            _mirror(touched_sum(num_layers, back)),
            _mirror(touched_sum(num_layers, [(1.0, start, users) for _, start, users in back])),
        )

    def taken_s(
        self, submesh: Submesh, cluster: Cluster, communication: CommunicationModel
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds of it, forward and backward, each of shape (L, L), where hosts are alike.

        In one host its devices take their shares at a time; between hosts, the hosts do.
        """
        group, lanes = Group(cluster, (0, 0) if len(cluster.hosts) == 1 else (0, 1)), _lanes(submesh, cluster)

        def taken(num_bytes: FloatArray, tensors: FloatArray) -> FloatArray:
            each = num_bytes / np.maximum(tensors, 1) / lanes
            return np.asarray(tensors * communication.seconds("send", each, group))

        return taken(self.forward_bytes, self.forward_tensors), taken(self.backward_bytes, self.backward_tensors)

    def largest_sent(self, submesh: Submesh, cluster: Cluster) -> float:
        """Bytes of the largest tensor that a stage takes in, as one of its devices or hosts does: see `taken_s`."""
        ways = (self.forward_bytes, self.forward_tensors), (self.backward_bytes, self.backward_tensors)
        largest = max(float(np.max(num_bytes / np.maximum(tensors, 1))) for num_bytes, tensors in ways)
        return largest / _lanes(submesh, cluster)


def _lanes(submesh: Submesh, cluster: Cluster) -> int:
    """How many shares of a tensor go at a time."""
    return submesh.num_devices if len(cluster.hosts) == 1 else submesh.num_hosts


def _mirror(ranges: FloatArray) -> FloatArray:
    """Entry (i, j) of the chain read from its end: (L-1-j, L-1-i)."""
    return ranges[::-1, ::-1].T
