"""A made-up plan for inference."""

from alpa_dejavu.planning.inference import Phase, ServingMemory, ServingPlan

PHASE = Phase(1e-3, 2e-4, 3e-4, 0.0, 4e-5, 1e-5, 5e-4, (9e-4, 2.1e-3))
PLAN = ServingPlan(
    model="kraken-760m-4",
    cluster="1 x dgx-a100",
    objective="throughput",
    prompt_tokens=512,
    output_tokens=128,
    high_prompt_tokens=1024,
    reserved_tokens=1200,
    tensor_parallel=4,
    stages=1,
    replicas=2,
    batch=64,
    prefill_batch=8,
    division="engine",
    first_token=PHASE,
    next_token=PHASE,
    high_first_token_s=2e-3,
    tokens_per_s=12345.0,
    cache_bytes_per_token=36864.0,
    memory=ServingMemory(2.0**30, 2.0**28, 2.0**20, 2.0**36),
    latency_limit_s=0.02,
    first_token_limit_s=None,
    latency="learned",
    communication="learned",
    calibration="a100",
    runtime="alpa+streams",
    notes=("a note",),
)
