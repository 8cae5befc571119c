"""A module that Alpa's passes can change: `HloModule` as Alpa's fork of jaxlib has it, in Python.

The stock class can be read only. This one holds the module's proto; passes replace it, readers ask it or a stock
module made of it. `XlaComputation.get_hlo_module()` gives it, and everything that takes a stock module accepts it as
before through `stock()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_dejavu.sharding.hlo import shardings as hlo_shardings
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_stock_jax._patch import Patch

__all__ = ["HloModule", "StockHloModule", "to_hlo_sharding", "to_proto"]

StockHloModule = xe.HloModule
_stock_cost_analysis = xe.hlo_module_cost_analysis
_MAY_ALIAS = 1


class _AcceptsStock(type):
    """Stock modules count as instances too: `isinstance(module, HloModule)` asks for a module of either kind."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, StockHloModule) or type.__instancecheck__(cls, instance)


class HloModule(metaclass=_AcceptsStock):
    """A module that can be changed in place.

    Attributes:
        proto: what the module is at the moment.
    """

    def __init__(self, proto: HloModuleProto | bytes) -> None:
        self.proto = HloModuleProto.FromString(proto) if isinstance(proto, bytes) else proto

    @staticmethod
    def from_serialized_hlo_module_proto(serialized: bytes) -> HloModule:
        """The module that the bytes of a proto hold."""
        return HloModule(serialized)

    @property
    def name(self) -> str:
        """The module's name."""
        return self.proto.name

    def stock(self) -> Any:
        """A stock module that equals this one now."""
        return StockHloModule.from_serialized_hlo_module_proto(self.as_serialized_hlo_module_proto())

    def as_serialized_hlo_module_proto(self) -> bytes:
        """The module as bytes."""
        return self.proto.SerializeToString()

    def to_string(self, *options: Any) -> str:
        """The module as text."""
        return self.stock().to_string(*options)

    def computations(self) -> Any:
        """The module's computations, as stock objects."""
        return self.stock().computations()

    def program_shape(self) -> xe.ProgramShape:
        """The shapes of parameters and result."""
        return xe.XlaComputation(self.as_serialized_hlo_module_proto()).program_shape()

    def parameter_shapes(self) -> list[xe.Shape]:
        """The shape of each parameter."""
        return self.program_shape().parameter_shapes()

    def infer_spmd_shardings(self) -> None:
        """Notes the shardings of parameters and result, as they are written on the instructions now."""
        hlo_shardings.summarize(self.proto)

    def spmd_parameters_shardings(self) -> list[xe.HloSharding]:
        """The sharding of each parameter."""
        return [to_hlo_sharding(sharding) for sharding in hlo_shardings.parameter_shardings(self.proto)]

    def spmd_output_sharding(self) -> xe.HloSharding:
        """The sharding of the result; a tuple's where the result is a tuple."""
        return to_hlo_sharding(hlo_shardings.output_sharding(self.proto))

    def set_spmd_parameters_shardings(self, shardings: Sequence[xe.HloSharding]) -> None:
        """Notes the sharding of each parameter of a partitioned module."""
        self.proto.ClearField("spmd_parameters_shardings")
        self.proto.spmd_parameters_shardings.extend(to_proto(sharding) for sharding in shardings)

    def set_spmd_output_sharding(self, sharding: xe.HloSharding) -> None:
        """Notes the sharding of the result of a partitioned module."""
        self.proto.spmd_output_sharding.CopyFrom(to_proto(sharding))

    def setup_alias(self, output_index: Sequence[int], parameter: int, parameter_index: Sequence[int]) -> None:
        """Lets an output take the place of a parameter in memory; a parameter gives its place once."""
        entries = self.proto.input_output_alias.entries
        if any(entry.parameter_number == parameter for entry in entries):
            return
        entries.add(
            output_shape_index=list(output_index),
            parameter_number=parameter,
            parameter_shape_index=list(parameter_index),
            kind=_MAY_ALIAS,
        )

    def __getstate__(self) -> bytes:
        return self.as_serialized_hlo_module_proto()

    def __setstate__(self, state: bytes) -> None:
        self.proto = HloModuleProto.FromString(state)


def to_hlo_sharding(sharding: OpSharding) -> xe.HloSharding:
    """A sharding's proto as jaxlib's object."""
    found = xc.OpSharding()
    found.ParseFromString(sharding.SerializeToString())
    return xe.HloSharding.from_proto(found)


def to_proto(sharding: Any) -> OpSharding:
    """Jaxlib's `HloSharding`, or its `OpSharding`, as a proto that can be edited."""
    if not isinstance(sharding, xc.OpSharding):
        sharding = sharding.to_proto()
    return OpSharding.FromString(sharding.SerializeToString())


def _get_hlo_module(computation: xe.XlaComputation) -> HloModule:
    return HloModule(computation.as_serialized_hlo_module_proto())


def _cost_analysis(client: Any, module: Any) -> Any:
    return _stock_cost_analysis(client, module.stock() if type(module) is HloModule else module)


class _HloShardingMaker(type):
    """Stands for jaxlib's `HloSharding`, and makes one from the bytes of its proto, as Alpa's fork does."""

    def __call__(cls, serialized: bytes) -> Any:
        return to_hlo_sharding(OpSharding.FromString(serialized))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, xc.HloSharding)

    def __getattr__(cls, name: str) -> Any:
        return getattr(xc.HloSharding, name)


class HloSharding(metaclass=_HloShardingMaker):
    """jaxlib's `HloSharding`, made from bytes."""


def _install(module: ModuleType) -> None:
    module.HloModule = HloModule  # type: ignore[attr-defined]
    module.HloSharding = HloSharding  # type: ignore[attr-defined]
    module.XlaComputation.get_hlo_module = _get_hlo_module
    module.XlaComputation.as_hlo_module = _get_hlo_module
    module.hlo_module_cost_analysis = _cost_analysis  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="jaxlib.xla_extension",
        reason="modules can be changed by passes and shardings made from bytes, as in Alpa's fork",
        apply=_install,
        expects={
            "HloModule": None, "HloSharding": None, "hlo_module_cost_analysis": None,
            "XlaComputation.get_hlo_module": None, "XlaComputation.as_hlo_module": None,
        },
        before=True,
    ),
)  # fmt: skip
