"""Model functions of Alpa's OSDI 2022 evaluation by name: each takes a batch size and returns a train step.

References:
    Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022,
    section 8.
"""

from alpa_dejavu.layers.models._suites import known_models, model_function

__all__ = ["known_models", "model_function"]
