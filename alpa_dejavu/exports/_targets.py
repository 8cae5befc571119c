"""All targets, by their names."""

from __future__ import annotations

from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports import deepspeed, galvatron, jaxpp, maxtext, megatron, torchtitan
from alpa_dejavu.exports._alpa import AlpaWriter
from alpa_dejavu.exports._costed import CostedWriter
from alpa_dejavu.exports._target import Target
from alpa_dejavu.exports.chakra import chakra_files
from alpa_dejavu.exports.simai import simai_files
from alpa_dejavu.planning.search.runtimes import RUNTIMES

__all__ = ["TARGETS", "named_target"]

_RULES = "checked by rules from its documentation"
_ALL = (
    Target("alpa", "Alpa 0.2.3", AlpaWriter(), RUNTIMES["alpa"], "local clusters of CPU devices run such scripts"),
    Target(
        "megatron", megatron.RELEASE, megatron.MegatronWriter(), RUNTIMES["megatron"],
        "its own argument parser and validation, of megatron-core 0.19.2 on a CPU, took such scripts; no step was run",
        megatron.MegatronReader(),
    ),
    Target(
        "torchtitan", torchtitan.RELEASE, torchtitan.TorchtitanWriter(), RUNTIMES["torchtitan"],
        f"{_RULES}; torchtitan 0.3.0's configuration took the settings of parallelism on a CPU, and PyTorch 2.13.0's "
        "pipelining ran the schedules; no step of torchtitan was run",
        torchtitan.TorchtitanReader(),
    ),
    Target(
        "deepspeed", deepspeed.RELEASE, deepspeed.DeepSpeedWriter(), RUNTIMES["deepspeed"],
        f"{_RULES}, and by DeepSpeed 0.19.8's own configuration and pipeline module on a CPU; no step was run",
        deepspeed.DeepSpeedReader(),
    ),
    Target(
        "galvatron", galvatron.RELEASE, galvatron.GalvatronWriter(), RUNTIMES["galvatron"],
        f"{_RULES}, and read by Galvatron 2.4.0's own reader of strategies on a CPU; no step was run",
        galvatron.GalvatronReader(),
    ),
    Target(
        "maxtext", maxtext.RELEASE, maxtext.MaxTextWriter(), RUNTIMES["maxtext"],
        f"{_RULES}; MaxText itself wasn't run",
    ),
    Target("jaxpp", jaxpp.RELEASE, jaxpp.JaxppWriter(), RUNTIMES["jaxpp"], f"{_RULES}; JaxPP itself wasn't run"),
    Target(
        "chakra", "Chakra's schema 0.0.4, as ASTRA-sim 2 reads it", CostedWriter(chakra_files),
        tried="a replayer of our own has replayed such traces; ASTRA-sim itself wasn't run",
    ),
    Target("simai", "SimAI 1.0's workloads", CostedWriter(simai_files), tried="SimAI itself wasn't run"),
)  # fmt: skip
TARGETS = {target.name: target for target in _ALL}
"""The runtimes and simulators that plans can be written for."""


def named_target(name: str) -> Target:
    """Returns the target of a name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in TARGETS:
        raise ValueError(f"to is {name!r}, but must be one of {', '.join(TARGETS)}{near(name, TARGETS)}")
    return TARGETS[name]
