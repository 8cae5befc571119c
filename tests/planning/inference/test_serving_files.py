"""Files of plans for inference: written and read again to the last bit, and what is wrong in them is told."""

import json

import pytest

from alpa_dejavu.planning.inference import read_serving_plan, write_serving_plan
from serving_plans import PLAN


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
