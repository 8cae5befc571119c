"""Operations of products and convolutions, by hand and by XLA's own count."""
import jax
import numpy as np
import pytest

from alpa_stock_jax.hlo_cost import count_flop_dot_conv_only
from hlo_tools import from_function


def _conv(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda a, b: a @ b, [(3, 4), (4, 5)], 2 * 3 * 4 * 5),
        (lambda a, b: a @ b, [(7, 3, 4), (7, 4, 5)], 2 * 7 * 3 * 4 * 5),
        (lambda a, b: jax.nn.relu(a @ b) @ b.T, [(3, 4), (4, 5)], 2 * 3 * 4 * 5 * 2),
        (_conv, [(2, 8, 8, 3), (3, 3, 3, 16)], 2 * (2 * 6 * 6 * 16) * (3 * 3 * 3)),
        (lambda a: a + a, [(3, 4)], 0),
    ],
)
def test_counts(function, shapes, expected):
    assert count_flop_dot_conv_only(from_function(function, *[np.ones(s, np.float32) for s in shapes])) == expected
