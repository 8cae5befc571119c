"""A data-parallel stage with offload, calculated from published formulas: nothing here knows this project's code.

The sources, by the names that the comments have:
    ZeRO: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
    ZeRO-Offload: Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021.
    ZeRO-Infinity: Rajbhandari et al., ZeRO-Infinity: Breaking the GPU Memory Wall, SC 2021.
    Calculon: Isaev et al., Calculon: a Methodology and Tool for High-Level Co-Design of Systems and LLMs, SC 2023.
"""

import dataclasses

from published_estimates import adam_bytes


@dataclasses.dataclass(frozen=True)
class Host:
    """Rates of a host in bytes/s: its memory (reads and writes together), copies to one device, and to all of them
    (each way), and its NVMe drives.
    """

    memory: float
    device: float
    shared: float
    nvme_read: float = 0.0
    nvme_write: float = 0.0


@dataclasses.dataclass(frozen=True)
class Job:
    """A model on the devices of one host. Bytes of weights, gradients and optimizer's states are per parameter; those
    of activations, and the seconds, per micro-batch and device. The layers are of equal size.
    """

    devices: int
    zero: int
    micro_batches: int
    forward_s: float
    backward_s: float
    params: float
    weight: float
    gradient: float
    state: float
    activation_bytes: float
    layers: int


@dataclasses.dataclass(frozen=True)
class Shares:
    optimizer: float = 0.0
    gradients: float = 0.0
    parameters: float = 0.0
    activations: float = 0.0
    nvme: bool = False
    """Whether the optimizer's states, and the parameters, are on NVMe drives; all else is in the host's memory."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Bytes of each device, and of the host for all its devices, by kind; bytes on its drives; seconds of a step."""

    device: dict[str, float]
    host: dict[str, float]
    nvme_bytes: float
    passes_s: float
    update_s: float

    @property
    def device_bytes(self):
        return sum(self.device.values())

    @property
    def host_bytes(self):
        return sum(self.host.values())

    @property
    def seconds(self):
        return self.passes_s + self.update_s


def held(job):
    """Returns the bytes of weights, gradients and states that a device would have with nothing offloaded.

    ZeRO, section 5: stage 1 divides the optimizer's states among the devices, 2 the gradients too, 3 the weights too.
    """
    parts = [job.devices if job.zero >= stage else 1 for stage in (3, 2, 1)]
    kinds = (job.weight, job.gradient, job.state)
    return [job.params * of_kind / part for of_kind, part in zip(kinds, parts, strict=True)]


def device_memory(job, shares):
    """Returns the bytes of each kind on a device."""
    weights, gradients, states = held(job)

    def kept(num_bytes, share, layers):
        # What isn't offloaded, and a buffer of so many layers' part of what is.
        return num_bytes * (1 - share) + num_bytes * share * min(layers, job.layers) / job.layers

    return {
        # Calculon, llm.py: two blocks of weights, the one that computes and the one that comes; ZeRO-Infinity,
        # section 6.2, prefetches alike.
        "parameters": kept(weights, shares.parameters, 2),
        # ZeRO-Offload, section 4.1: gradients go in small groups as soon as they are there.
        "gradients": kept(gradients, shares.gradients, 1),
        # ZeRO-Offload, section 3: the host updates what it has, so that none of its states come to the device.
        "optimizer": kept(states, shares.optimizer, 0),
        "activations": kept(job.activation_bytes, shares.activations, 1),
    }


def host_memory(job, shares):
    """Returns the bytes of each kind in the host's memory, for all devices, and the bytes on its drives."""
    weights, _, states = held(job)
    optimizer = job.devices * states * shares.optimizer
    parameters = job.devices * weights * shares.parameters
    in_memory = {
        # ZeRO-Offload, figure 2: with the states, the host has the 16-bit gradients of what it updates, whether they
        # came with each micro-batch or at the end.
        "gradients": job.devices * updated(job, job.gradient) * shares.optimizer,
        "activations": job.devices * job.activation_bytes * shares.activations,
    }
    if shares.nvme:
        return in_memory, optimizer + parameters
    return {**in_memory, "optimizer": optimizer, "parameters": parameters}, 0.0


def updated(job, num_bytes):
    """Returns the bytes of what one device, or the host for it, updates: under ZeRO, a part of the parameters."""
    return job.params * num_bytes / (job.devices if job.zero >= 1 else 1)


def stage(job, shares, host, overlapped):
    """Returns the memory and the seconds of a step of a job with such shares offloaded."""
    if job.devices > 1 and ((shares.gradients and job.zero < 2) or (shares.parameters and job.zero < 3)):
        raise ValueError("published: gradients are offloaded under ZeRO-2 or 3, parameters under ZeRO-3")
    in_memory, nvme_bytes = host_memory(job, shares)
    passes = job.micro_batches * sum(pass_seconds(job, shares, host, overlapped))
    update = update_seconds(job, shares, host, overlapped)
    return Result(device_memory(job, shares), in_memory, nvme_bytes, passes, update)


def copy_rate(job, host):
    """Returns the bytes/s of copies between the host and each device, each way, while all devices copy."""
    # ZeRO-Infinity, section 6.1: each device moves its own part, by its own link, all at the same time.
    return min(host.device, host.shared / job.devices)


def pass_seconds(job, shares, host, overlapped):
    """Returns the seconds of the forward and of the backward pass of a micro-batch.

    Overlapped, a pass takes as long as the slowest of computing, copies up, copies down, and reading from NVMe
    (Calculon: a block's seconds, or its offload's where those are more; ZeRO-Infinity, section 6.2: NVMe to host, host
    to device and computing overlap). Else, one after the other (ZeRO-Infinity, section 4: efficiency is computing over
    computing and communication).
    """
    weights, gradients, _ = held(job)
    rate = copy_rate(job, host)
    come = weights * shares.parameters
    wait = job.activation_bytes * shares.activations
    read_s = come / (host.nvme_read / job.devices) if shares.nvme and come else 0.0
    together = max if overlapped else lambda *seconds: sum(seconds)
    # Parameters come for each pass, gradients go with each backward pass; activations go and come back.
    forward_s = together(job.forward_s, come / rate, wait / rate, read_s)
    backward_s = together(job.backward_s, (come + wait) / rate, gradients * shares.gradients / rate, read_s)
    return forward_s, backward_s


def update_seconds(job, shares, host, overlapped):
    """Returns the seconds from the last backward pass to the next step: nothing of it hides behind computing.

    ZeRO-Offload, section 4.1 and figure 3: gradients down, Adam on the host, parameters up; section 5.1 overlaps the
    copies with Adam, tile by tile. ZeRO-Infinity, section 5.2.2: states are read from NVMe and written back while
    others are updated. The update of what stays on the devices is not counted.
    """
    if not shares.optimizer:
        return 0.0
    rate, part = copy_rate(job, host), 1 / job.devices
    weights, _, states = held(job)
    down_s = updated(job, job.gradient) * (shares.optimizer - shares.gradients) / rate
    up_s = updated(job, job.weight) * (shares.optimizer - shares.parameters) / rate
    moved = adam_bytes(updated(job, 1.0), job.weight, job.gradient, job.state) * shares.optimizer
    on_host = [moved / (host.memory * part)]
    if shares.nvme:
        read = states * shares.optimizer
        written = read + weights * shares.parameters
        on_host += [read / (host.nvme_read * part), written / (host.nvme_write * part)]
    if overlapped:
        return max(down_s, *on_host, up_s)
    return down_s + sum(on_host) + up_s


# Rounded, with 0.43 to 0.45 of the peak of the host's memory, about what ZeRO-Offload's CPU Adam reaches. Two
# calculations have the same numbers by them: they needn't be exact.
V100_HOST = Host(memory=110e9, device=12e9, shared=48e9)
"""Eight V100 by four PCIe 3.0 switches; two Xeons with six channels of DDR4-2666 each."""
A100_HOST = Host(memory=126e9, device=24e9, shared=96e9, nvme_read=16e9, nvme_write=8e9)
"""Eight A100 by PCIe 4.0, two on a switch; two Xeons with six channels of DDR4-2933 each; eight NVMe drives."""

GPT_13B = Job(8, 2, 4, 0.5, 1.5, 13e9, weight=2, gradient=2, state=12, activation_bytes=0.4e9, layers=40)
CONFIGURATIONS = {
    "13B, ZeRO-2, optimizer": (GPT_13B, Shares(optimizer=1.0), V100_HOST),
    "13B, ZeRO-2, optimizer and gradients": (GPT_13B, Shares(optimizer=1.0, gradients=1.0), V100_HOST),
    "30B, ZeRO-3, optimizer and half of the parameters": (
        Job(8, 3, 2, 2.5, 7.5, 30e9, weight=2, gradient=2, state=12, activation_bytes=0.7e9, layers=48),
        Shares(optimizer=1.0, parameters=0.5),
        V100_HOST,
    ),
    "2.6B, ZeRO-2, half of the activations": (
        Job(8, 2, 2, 0.3, 0.9, 2.6e9, weight=2, gradient=2, state=12, activation_bytes=24e9, layers=32),
        Shares(activations=0.5),
        A100_HOST,
    ),
    "13B, ZeRO-2, optimizer on NVMe": (
        dataclasses.replace(GPT_13B, micro_batches=8, forward_s=0.15, backward_s=0.45),
        Shares(optimizer=1.0, nvme=True),
        A100_HOST,
    ),
}
"""Five jobs, what they offload, and their hosts."""
