"""How many processes the launchers of training start: torchrun, DeepSpeed's, MPI's, Slurm's and accelerate's."""

from __future__ import annotations

import pathlib
from typing import Final

from alpa_dejavu.exports._command_line import Argument, CommandLine, wrong_line
from alpa_dejavu.exports._foreign import short
from alpa_dejavu.exports.megatron._sizes import MOST_DIGITS

__all__ = ["check_processes"]

_LONG: Final = {"N": "nodes"}


def check_processes(path: pathlib.Path, command: CommandLine, num_devices: int) -> None:
    """Checks that a launcher starts as many processes as a cluster has devices, where it says how many.

    Args:
        path: the script.
        command: the command that it runs.
        num_devices: the cluster's devices.

    Raises:
        ValueError: it starts another number, or one that isn't known; says in which line.
    """
    names = {word.rpartition("/")[2] for word in command.launch}
    by_torch = not names.isdisjoint(("torchrun", "torch.distributed.run", "torch.distributed.launch"))
    given = {_LONG.get(one.name, one.name.replace("_", "-")): one for one in command.launched}
    if not command.program and {"nnodes", "nproc-per-node"} & {*given}:
        by_torch = True
    pairs = (("nnodes", "nproc-per-node"), ("num-nodes", "num-gpus"), ("nodes", "ntasks-per-node"))
    nodes, each = pairs[0] if by_torch else pairs[1] if "deepspeed" in names else pairs[2]
    whole = [] if by_torch else [name for name in ("np", "n", "num-processes", "ntasks") if name in given]
    if whole and names & {"mpirun", "mpiexec", "accelerate", "srun"}:
        count, started = _count(path, given[whole[0]]), f"{given[whole[0]].value} processes"
    elif by_torch or {nodes, each} <= {*given} or (each == "num-gpus" in given and "hostfile" not in given):
        if by_torch and each in given and given[each].value in ("gpu", "auto"):
            return
        first = _count(path, given[nodes]) if nodes in given else 1
        second = _count(path, given[each]) if each in given else 1
        count, started = first * second, f"{first} nodes of {second} processes"
    else:
        return
    if count != num_devices:
        there = next((given[name] for name in (nodes, each, *whole) if name in given), None)
        raise wrong_line(
            path, command.line if there is None else there.line,
            f"{started} aren't the {num_devices} devices of the cluster; give the cluster that it runs on, by "
            "--cluster and --hosts",
        )  # fmt: skip


def _count(path: pathlib.Path, one: Argument) -> int:
    if one.unknown is not None:
        raise wrong_line(path, one.unknown.line, f"--{one.name} {one.value} isn't known: {one.unknown.said}")
    value = one.value
    least, _, most = value.partition(":")
    value = least if least == most else value
    if not (value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS):
        raise wrong_line(path, one.line, f"--{one.name} is {short(value)}, but must be a whole number; write it out")
    return int(value)
