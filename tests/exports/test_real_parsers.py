"""The runtimes' own parsers accept what is written for them, where they install on a CPU."""

import dataclasses
import importlib
import itertools
import json
import re
import socket
import subprocess
import sys

import pytest

import deepspeed_stage
from alpa_dejavu.exports import TARGETS
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import NO_OFFLOAD, Offload
from alpa_dejavu.testing import example_cluster

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
MODEL = Transformer(64, 12, 8, 128, 32, gated=True, rotary=True, rms_norm=True)
OUTLINES = {
    "uneven": Outline(32, 8, "1f1b", 2, 2, (4, 3, 3, 2), ("none",) * 4, 0, NO_OFFLOAD),
    "empty last stage": Outline(32, 8, "1f1b", 1, 1, (5, 5, 2, 0), ("none",) * 4, 0, NO_OFFLOAD),
    "interleaved": Outline(16, 8, "interleaved", 2, 1, (4, 3, 3, 2), ("layer",) * 4, 2, NO_OFFLOAD),
    "no pipeline": Outline(32, 4, "1f1b", 4, 1, (12,), ("layer",), 3, NO_OFFLOAD),
    "offload": Outline(32, 4, "1f1b", 4, 1, (12,), ("none",), 2, Offload(1.0, 1.0)),
}


def package(name):
    """A module of a runtime that isn't in requirements.txt."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} isn't installed here: {error}")


def written(target, outline):
    size = max(outline.num_devices // 8, 1), min(outline.num_devices, 8)
    return TARGETS[target].writer.write(outline.plan(example_cluster(*size), MODEL), MODEL)


@pytest.mark.parametrize("name", ["uneven", "empty last stage", "interleaved"])
def test_megatron_reads_the_stages_from_the_layout(name):
    parser = package("megatron.core.transformer.pipeline_parallel_layer_layout").PipelineParallelLayerLayout
    outline = OUTLINES[name]
    (layout,) = re.findall(r"--pipeline-model-parallel-layout '(.*)'", written("megatron", outline)["run_megatron.sh"])
    read = parser.from_str(layout, outline.pipeline)
    read.validate_layer_layout(outline.num_blocks, None)
    stages = len(outline.blocks)
    assert parser.get_num_stages_from_str(layout) == stages
    for n, blocks in enumerate(outline.blocks):
        kinds = [kind.name for kind in read.layout[n % outline.pipeline][n // outline.pipeline]]
        assert kinds == ["embedding"] * (n == 0) + ["decoder"] * blocks + ["loss"] * (n == stages - 1)


@pytest.mark.parametrize("name", ["uneven", "no pipeline", "offload"])
def test_deepspeed_takes_the_configuration(name, monkeypatch):
    config = package("deepspeed.runtime.config")
    outline = OUTLINES[name]
    outline = dataclasses.replace(outline, tensor_parallel=1)
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)  # it isn't initialised
    files = written("deepspeed", outline)
    read = config.DeepSpeedConfig(json.loads(files["deepspeed_config.json"]), mpu=Replicas(outline.data_parallel))
    assert read.train_batch_size == outline.batch
    assert read.train_micro_batch_size_per_gpu == outline.micro_batch
    assert read.gradient_accumulation_steps == outline.num_micro_batches
    assert read.zero_optimization_stage == {0: 0, 2: 1, 3: 3}[outline.zero]
    there = read.zero_config.offload_optimizer
    assert (0.0 if there is None else there.ratio) == outline.offload.optimizer
    parts = read._param_dict["pipeline"]["parts"]
    assert [b - a for a, b in itertools.pairwise(parts)] == outline_layers(outline)


def test_deepspeeds_pipeline_has_the_stages_of_the_plan(tmp_path):
    package("deepspeed")
    outline = Outline(8, 8, "1f1b", 1, 1, (9, 3), (True, False), 0, NO_OFFLOAD)
    for name, content in written("deepspeed", outline).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, deepspeed_stage.__file__]
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(port), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert said == [[0, 9, True], [10, 13, False]]


class Replicas:
    """As much of an object for model parallelism as DeepSpeed's configuration asks."""

    def __init__(self, number):
        self.number = number

    def get_data_parallel_world_size(self):
        return self.number


def outline_layers(outline):
    layers = list(outline.blocks)
    layers[0] += 1
    layers[-1] += 1
    return layers


@pytest.mark.parametrize("name", ["uneven", "no pipeline"])
def test_galvatron_reads_the_strategy(name):
    utils = package("galvatron.utils")
    outline = OUTLINES[name]
    config = json.loads(written("galvatron", outline)["galvatron_config.json"])
    pipeline, tensor, _, types, sequence, vocabulary, vocabulary_sequence = utils.config2strategy(config)
    assert pipeline == outline.pipeline
    assert list(tensor) == [outline.tensor_parallel] * outline.num_blocks
    assert list(types) == [int(outline.zero == 3)] * outline.num_blocks
    assert list(sequence) == [0] * outline.num_blocks
    assert (vocabulary, vocabulary_sequence) == (outline.tensor_parallel, 0)
    assert list(utils.str2array(config["pp_division"])) == list(outline.blocks)


@pytest.mark.parametrize("name", ["uneven", "interleaved"])
def test_torchtitan_takes_the_settings_of_parallelism(name):
    config = package("torchtitan.config")
    text = written("torchtitan", OUTLINES[name])["torchtitan_plan.py"]
    (said,) = re.findall(r"^def parallelism\(\).*?(?=^def |\Z)", text, re.MULTILINE | re.DOTALL)
    names = {"ParallelismConfig": config.ParallelismConfig, "__file__": "torchtitan_plan.py"}
    exec(compile(said, "torchtitan_plan.py", "exec"), names)
    made = names["parallelism"]()
    assert made.pipeline_parallel_degree == OUTLINES[name].pipeline
    assert len(made.module_fqns_per_model_part) == len(OUTLINES[name].blocks)
