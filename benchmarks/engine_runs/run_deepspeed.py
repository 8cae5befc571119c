"""Trains by the files that are written for DeepSpeed, with layers of one's own, and prints the losses."""

import json
import pathlib
import sys

import deepspeed
import deepspeed_plan
import torch
from _model import Sizes, data_of, layer_of, loss_of


def main():
    """Trains, and prints the losses."""
    facts = json.loads(pathlib.Path(sys.argv[1], "run.json").read_text())
    deepspeed.init_distributed("gloo", verbose=False)
    count, across = facts["micro_batches"], facts["data_parallel"]
    samples = facts["batch"] // count // across
    sizes = Sizes(facts["blocks"], facts["hidden"], facts["heads"], facts["vocabulary"], samples, facts["sequence"])
    layers = [layer_of(sizes, number) for number in range(sizes.layers)]
    engine = deepspeed_plan.engine_of(layers, loss_of, lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    group, losses = engine.mpu.get_data_parallel_group() if engine.mpu else None, []
    replica = torch.distributed.get_rank(group)
    for _ in range(facts["steps"]):
        words, targets = data_of(sizes, count * across)
        parts = list(zip(words.chunk(count * across), targets.chunk(count * across), strict=True))
        loss = deepspeed_plan.train_step(engine, parts[replica::across]).reshape(())
        torch.distributed.all_reduce(loss, group=group)
        losses.append(float(loss) / across)
    print("\nLOSSES", json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
