"""Tells who asks PyTorch for an accelerator of the CPU: torchtitan takes CUDA where there is none. Imported first."""

import torch

torch._utils._get_available_device_type = lambda: "cpu"
