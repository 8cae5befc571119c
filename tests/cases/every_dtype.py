"""All dtypes that arrays of jax have."""

import jax.numpy as jnp
import numpy as np

JAX_DTYPES = [
    np.dtype(getattr(jnp, name))
    for name in (
        "bool_", "int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64",
        "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
        "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
    )
]  # fmt: skip
