"""Trains by the files that are written for torchtitan, on CPU, and prints the losses."""

import json
import pathlib
import sys

import torch

# torchtitan asks PyTorch for an accelerator, and takes CUDA where there is none: it is told of the CPU.
torch._utils._get_available_device_type = lambda: "cpu"

import torchtitan_plan  # noqa: E402

def main():
    config = torchtitan_plan.config()
    print(config.to_dict().keys())
    trainer = config.build()
    print(trainer)

if __name__ == "__main__":
    main()
