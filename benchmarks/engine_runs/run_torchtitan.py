"""Trains by the files that are written for torchtitan, on CPU, and prints the losses."""

import dataclasses
import json
import pathlib
import sys
import zlib

import _cpu_for_torchtitan  # noqa: F401
import torch
import torchtitan.components.metrics as metrics
import torchtitan.distributed.utils as torchtitan_utils
import torchtitan_plan
from _model import Sizes, data_of
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

FACTS = json.loads(pathlib.Path(sys.argv[1], "run.json").read_text())


class _NoMonitor:
    """No monitor of memory, which is there for accelerators alone."""

    device_name = "cpu"

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        pass


class _NoTokenizer(BaseTokenizer):
    """No tokenizer: tokens are there."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, *args, **kwargs):
        raise NotImplementedError

    def decode(self, *args, **kwargs):
        raise NotImplementedError

    def get_vocab_size(self):
        return FACTS["vocabulary"]


class _Tokens(BaseDataLoader):
    """The same batch in each step, of which a replica has its part."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **_):
        sizes = Sizes(0, 0, 0, FACTS["vocabulary"], FACTS["batch"], FACTS["sequence"])
        words, targets = (part.chunk(dp_world_size)[dp_rank] for part in data_of(sizes, 1))
        self.parts = list(zip(words.split(local_batch_size), targets.split(local_batch_size), strict=True))

    def __iter__(self):
        positions = torch.arange(FACTS["sequence"], dtype=torch.int32)
        while True:
            for words, targets in self.parts:
                yield {"input": words.clone(), "positions": positions.repeat(len(words), 1)}, targets.clone()

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def _begin(model):
    """Gives each parameter what follows from its name, so that it begins alike wherever it is."""
    for name, parameter in model.named_parameters():
        name = name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
        seeded = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        whole = torch.randn(parameter.shape, generator=seeded) * 0.05 + ("norm" in name)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        with torch.no_grad():
            parameter.copy_(whole)


def main():
    """Trains, and prints the losses where the last stage is."""
    config = torchtitan_plan.config()
    config.training.steps, config.metrics.log_freq, config.lr_scheduler.warmup_steps = FACTS["steps"], 1, 0
    config.training.disable_cuda_graphs = True
    config.tokenizer, config.dataloader = _NoTokenizer.Config(), _Tokens.Config()
    # "FlexAttention does not support backward on CPU"
    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())
    torchtitan_utils.set_pg_timeouts = lambda *_, **__: None  # they go by the number of an accelerator
    metrics.build_device_memory_monitor = _NoMonitor
    trainer, losses = config.build(), []
    for model in trainer.model_parts:
        _begin(model)
    trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.append(float(loss))
    trainer.train()
    last = trainer.parallel_dims.pp == 1 or trainer.pp_has_last_stage
    print("\nLOSSES", json.dumps(losses if last else None), flush=True)


if __name__ == "__main__":
    main()
