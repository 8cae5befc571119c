"""Transformers by their sizes, divided among devices as training frameworks divide them.

In: a transformer's sizes, a framework's way to run it, and the degrees of parallelism.
Out: what each device computes, sends and keeps, layer by layer.
"""

from alpa_dejavu.sharding.transformers._division import (
    Reckoning,
    TransformerSharding,
    training_text,
    transformer_data,
    transformer_model,
    transformer_of,
)
from alpa_dejavu.sharding.transformers._execution import EXECUTIONS, PLAIN, Execution, execution

__all__ = [
    "EXECUTIONS",
    "PLAIN",
    "Execution",
    "Reckoning",
    "TransformerSharding",
    "execution",
    "training_text",
    "transformer_data",
    "transformer_model",
    "transformer_of",
]
