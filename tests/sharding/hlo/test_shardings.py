"""Shardings are read where they are written, in the forms that annotated and partitioned modules have."""
import numpy as np

from alpa_dejavu.sharding.hlo import shardings
from hlo_tools import from_function


def _module():
    return from_function(lambda a, b: (a + b, a), *[np.ones((4, 4), np.float32)] * 2)


def test_nothing_written_is_replicated():
    module = _module()
    assert shardings.parameter_shardings(module) == [shardings.replicated()] * 2
    assert shardings.output_sharding(module) == shardings.tuple_sharding([shardings.replicated()] * 2)
