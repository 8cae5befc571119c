"""Files of plans for inference: written and read again to the last bit, and what is wrong in them is told."""

import json

import pytest

from alpa_dejavu.planning.inference import read_serving_plan, write_serving_plan
from serving_plans import PHASE, PLAN


def test_the_parts_of_a_phase_are_all_of_it():
    assert PHASE.seconds == pytest.approx(1e-3 + 2e-4 + 3e-4 + 4e-5)
    assert PHASE.memory_bound_s == pytest.approx(5e-4 + 2e-4)
    assert PLAN.num_devices == 8
    assert PLAN.memory.peak_bytes == 2**30 + 2**28 + 2**20


def test_a_plan_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "serving.json"
    write_serving_plan(PLAN, path)
    assert read_serving_plan(path) == PLAN
    text = path.read_text()
    write_serving_plan(read_serving_plan(path), path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version is 2, but must be 1"),
        ({"tensor_parallel": 0}, "tensor_parallel is 0, but must be a whole number of at least 1"),
        ({"objective": "price"}, 'objective is "price", but must be "latency" or "throughput"'),
        ({"latency_limit_s": -1}, "latency_limit_s is -1, but must be seconds above 0, or null"),
        ({"user": 1}, "user is an unknown key"),
        ({"memory": {}}, "memory lacks the key 'weights_bytes'"),
    ],
)
def test_what_is_wrong_in_a_file_is_told(tmp_path, change, said):
    path = tmp_path / "serving.json"
    write_serving_plan(PLAN, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"serving\.json") as caught:
        read_serving_plan(path)
    assert said in str(caught.value)


def test_whole_numbers_may_be_written_with_a_point(tmp_path):
    path = tmp_path / "serving.json"
    write_serving_plan(PLAN, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stages": 1.0}))
    assert type(read_serving_plan(path).stages) is int
