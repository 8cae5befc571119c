"""One process of a pipeline that DeepSpeed makes of a written plan, run as a script: RANK WORLD PORT FOLDER.

It prints as JSON the first and the last layer of its stage, and whether they are computed again.
"""

import json
import os
import sys


def main():
    rank, world, port, folder = sys.argv[1:]
    os.environ |= {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo", verbose=False)
    sys.path.insert(0, folder)
    import deepspeed_plan

    layers = [torch.nn.Linear(4, 4) for _ in range(deepspeed_plan.CONFIG["pipeline"]["parts"][-1])]
    made = deepspeed_plan.PlannedPipeline(layers, loss_fn=torch.nn.functional.mse_loss)
    found = made._local_start, made._local_stop - 1, bool(made.activation_checkpoint_interval)
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
