"""Memory as DeepSpeed estimates it, and CPU Adam's seconds as ZeRO-Offload measured them: nothing of this project.

References:
    DeepSpeed, Memory Requirements, https://deepspeed.readthedocs.io/en/latest/memory.html (formulas and figures).
    Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, USENIX ATC 2021, table 4 (CPU Adam).
"""

FP16 = 2
"""Bytes of a parameter, or gradient, as the passes use it."""
FP32 = 4
"""Bytes of each of Adam's four, per parameter: the copy that it updates, momentum, variance, the gradient."""
ADAM_STATES = 4 * FP32
"""The factor 16: parameter, momentum, variance and gradient in float32."""
BUFFERS = 1.5
"""What DeepSpeed adds to each figure of the host, "to be conservative"."""


def initial_copies(params, gpus):
    """Returns the bytes of the model as each process of a host first makes it: in float32, one copy a process."""
    return FP32 * gpus * params


def deepspeed_zero2(params, gpus, offload):
    """Returns the bytes of a GPU, and of the host, under ZeRO-2 on the GPUs of one host.

    Offloaded: a GPU has the fp16 parameters alone (2). The host has Adam's states (16), or what it takes to begin (4 a
    process), whichever is more. Not offloaded: a GPU has fp16 parameters and, whole, fp16 gradients (2 + 2), and its
    share of Adam's states (16 / GPUs), among them the gradients once more in float32.
    """
    if offload:
        host = max(initial_copies(params, gpus), ADAM_STATES * params)
        return FP16 * params, host * BUFFERS
    return 2 * FP16 * params + ADAM_STATES * params / gpus, initial_copies(params, gpus) * BUFFERS


def deepspeed_zero3(params, largest_layer_params, gpus, offload_optimizer, offload_params, zero_init):
    """Returns the bytes of a GPU, and of the host, under ZeRO-3 on the GPUs of one host.

    A GPU gathers the largest layer: its fp16 parameters, and their fp16 gradients (4). Beside it, it has its share of
    what isn't offloaded: fp16 parameters (2), Adam's states (16). The host has what is offloaded, or what it takes to
    begin, whichever is more. With zero.Init the model is never whole: one layer at a time, in each process.
    """
    gathered = 2 * FP16 * largest_layer_params
    if offload_optimizer:
        on_host = ADAM_STATES + (FP16 if offload_params else 0)
        on_gpu = 0 if offload_params else FP16
    else:
        on_host, on_gpu = 0, ADAM_STATES + FP16
    begun = initial_copies(params, gpus)
    if zero_init:
        begun = 0 if offload_optimizer else initial_copies(largest_layer_params, gpus)
    return gathered + on_gpu * params / gpus, max(begun, on_host * params) * BUFFERS


T5_3B_LARGEST = 32128 * 1024
"""The largest layer of the model of DeepSpeed's example: its embedding, 32 M."""
T5_3B = 24 * (12 * 1024 * 4096 + 4 * 1024 * 16384 + 5 * 1024) + T5_3B_LARGEST + 2 * (32 * 32 + 1024)
"""Its parameters, 2851 M.

Twenty-four layers of the encoder and the decoder: three attentions of four matrices, two feed-forward layers of two,
five norms. Then the embedding that all share, relative positions, and the last norms.
"""


def adam_bytes(params, weight=FP16, gradient=FP16, state=3 * FP32):
    """Returns the bytes that an update on the host's processors reads and writes: the states both ways, the gradients
    in, the parameters both ways.
    """
    return params * (2 * state + gradient + 2 * weight)
