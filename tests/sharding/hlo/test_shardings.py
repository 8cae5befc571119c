"""Shardings are read where they are written, in the forms that annotated and partitioned modules have."""

import numpy as np
import pytest

from alpa_dejavu.sharding.hlo import shardings
from alpa_dejavu.sharding.hlo.schema import OpSharding
from hlo_tools import from_function, to_text

ROWS = OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[0, 1])
COLUMNS = OpSharding(type=3, tile_assignment_dimensions=[1, 2], tile_assignment_devices=[0, 1])


def _module():
    return from_function(lambda a, b: (a + b, a), *[np.ones((4, 4), np.float32)] * 2)


def test_what_is_written_is_read_and_xla_reads_the_same():
    module = _module()
    shardings.set_parameter_shardings(module, [ROWS, OpSharding(type=shardings.MANUAL)])
    shardings.set_output_shardings(module, [COLUMNS, ROWS])
    assert shardings.parameter_shardings(module) == [ROWS, shardings.replicated()]
    assert list(shardings.output_sharding(module).tuple_shardings) == [COLUMNS, ROWS]
    text = to_text(module)
    assert text.count("sharding={devices=[2,1]0,1}") == 1
    assert "sharding={{devices=[1,2]0,1}, {devices=[2,1]0,1}}" in text


def test_a_summary_stands_for_the_instructions_until_they_are_written_again():
    module = _module()
    shardings.set_parameter_shardings(module, [ROWS, ROWS])
    shardings.summarize(module)
    for part in module.computations:
        for node in part.instructions:
            node.ClearField("sharding")
    assert shardings.parameter_shardings(module) == [ROWS, ROWS]
    shardings.set_output_shardings(module, [COLUMNS, COLUMNS])
    assert list(shardings.output_sharding(module).tuple_shardings) == [COLUMNS, COLUMNS]


@pytest.mark.parametrize("write", [shardings.set_parameter_shardings, shardings.set_output_shardings])
def test_a_wrong_number_of_shardings_is_refused(write):
    with pytest.raises(ValueError, match="1 shardings for the 2"):
        write(_module(), [ROWS])
