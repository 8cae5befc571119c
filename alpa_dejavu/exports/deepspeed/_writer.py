"""A plan as DeepSpeed's JSON, with a subclass of its pipeline module that takes the stages' layers from it."""

from __future__ import annotations

import itertools
import json
from typing import Any

from alpa_dejavu.exports._outline import Outline, commented, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan

RELEASE = "DeepSpeed 0.19"
_PRECISIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"bf16": {"enabled": True}}, "float16": {"fp16": {"enabled": True}}, "float32": {},
}  # fmt: skip


def deepspeed_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns DeepSpeed's JSON, and a pipeline module whose stages are the plan's."""
    text = json.dumps(_configuration(outline, sizes.precision), indent=2) + "\n"
    return {"deepspeed_config.json": text, "deepspeed_plan.py": _module(plan, outline, sizes)}


def _configuration(outline: Outline, precision: str) -> dict[str, Any]:
    ends = list(itertools.accumulate([outline.blocks[0] + 1, *outline.blocks[1:]]))
    ends[-1] += 1
    again = [int(each) for each in outline.remat]
    return {
        "train_batch_size": outline.batch,
        "train_micro_batch_size_per_gpu": outline.micro_batch,
        "gradient_accumulation_steps": outline.num_micro_batches,
        **_PRECISIONS[precision],
        "zero_optimization": _zero(outline),
        "pipeline": {"stages": outline.pipeline, "parts": [0, *ends], "recompute": again},
        **({"activation_checkpointing": {"cpu_checkpointing": True}} if outline.offload.activations else {}),
    }


def _zero(outline: Outline) -> dict[str, Any]:
    """ZeRO 1 is the plan's level 2: gradients stay whole until the step, as under a pipeline."""
    there = outline.offload
    stage = 3 if outline.zero == 3 or there.parameters else 1 if outline.zero == 2 or there.optimizer else 0
    data: dict[str, Any] = {"stage": stage}
    for key, share in (("offload_optimizer", there.optimizer), ("offload_param", there.parameters)):
        if share:
            data[key] = {"device": there.place, "pin_memory": True}
            data[key] |= {"nvme_path": "/local_nvme"} if there.place == "nvme" else {}
            data[key] |= {"ratio": share} if share < 1 else {}
    return data


def _module(plan: Plan, outline: Outline, sizes: Transformer) -> str:
    lines = [
        *heading(plan, outline, RELEASE), "",
        f"Layers in order: embeddings, {sizes.num_blocks} blocks, and the head; the loss is loss_fn.",
        "deepspeed_config.json has what DeepSpeed reads: batch sizes from the plan's batch, micro-batches and",
        "replicas; zero_optimization from its ZeRO level (ZeRO 1 is level 2 of a plan: it shares the optimizer's state",
        "and step) and its offload. pipeline.parts are the first layers of its stages, and pipeline.recompute its",
        "remat: DeepSpeed itself doesn't know these two, PlannedPipeline reads them.",
    ]  # fmt: skip
    return f'''{commented(lines)}
import json
import pathlib

import deepspeed
from deepspeed.pipe import PipelineModule

CONFIG = json.loads(pathlib.Path(__file__).with_name("deepspeed_config.json").read_text())


class PlannedPipeline(PipelineModule):
    """A pipeline module whose stages have the plan's layers, and compute those again that the plan says."""

    def __init__(self, layers, **settings):
        super().__init__(layers, num_stages=CONFIG["pipeline"]["stages"], partition_method="uniform", **settings)
        self.activation_checkpoint_interval = CONFIG["pipeline"]["recompute"][self.stage_id]

    def _partition_layers(self, method="uniform"):
        parts = CONFIG["pipeline"]["parts"]
        if parts[-1] != len(self._layer_specs):
            raise ValueError(f"there are {{len(self._layer_specs)}} layers, but must be {{parts[-1]}}, as were planned")
        self.parts = list(parts)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def engine_of(layers, loss_fn, optimizer):
    """Returns DeepSpeed's engine for layers (embeddings, blocks, head) that are trained by the plan.

    Args:
        layers: the layers, each a module or a LayerSpec; tied ones are TiedLayerSpecs.
        loss_fn: the loss of the last layer's result and the labels.
        optimizer: a function that makes the optimizer of parameters.
    """
    model = PlannedPipeline(layers, loss_fn=loss_fn)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer(model.parameters()), config=CONFIG)
    return engine
'''
