"""Files, shapes and lengths of serving."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.planning.inference import Decoder, Lengths, read_serving_plan, write_serving_plan
from alpa_dejavu.planning.inference._decoder import ServingShape, shapes
from alpa_dejavu.testing import example_cluster
from serving_plans import PHASE, PLAN


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


def model(heads=None, num_blocks=None):
    return Decoder("a model", lambda batch_size, tokens: None, 8.0, num_blocks, heads)


def test_all_divisors_of_the_heads_and_powers_of_two_of_stages_are_tried():
    found = shapes(model(12, 24), example_cluster(2, 8, 2.0**30), None, None)
    assert {shape.tensor_parallel for shape in found} == {1, 2, 3, 4, 6}
    assert ServingShape(6, 2, 1, 1) in found
    assert ServingShape(4, 2, 2, 2) in found
    assert ServingShape(1, 16, 1, 8) in found
    assert {shape.tensor_parallel for shape in shapes(model(), example_cluster(1, 6, 2.0**30), None, None)} == {1, 2, 4}


@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from([None, 6, 16]), st.sampled_from([None, 3, 24]))
def test_no_shape_takes_more_devices_or_layers_than_there_are(hosts, devices, heads, blocks):
    for shape in shapes(model(heads, blocks), example_cluster(hosts, devices, 2.0**30), None, None):
        assert shape.replicas >= 1
        assert shape.tensor_parallel <= devices
        assert shape.replicas * shape.tensor_parallel * shape.stages <= hosts * devices
        assert shape.host_of(shape.stages - 1) < hosts
        assert blocks is None or shape.stages <= blocks


@pytest.mark.parametrize("stages", [0, 5])
def test_too_many_stages_are_refused(stages):
    with pytest.raises(ValueError, match=f"stages is {stages}, but must be from 1 to 4, by the devices"):
        shapes(model(8), example_cluster(2, 4, 2.0**30), 2, stages)


def test_means_and_percentiles_of_a_file_are_weighted(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("prompt,output,weight\n100,10,94\n1000,200,6\n")
    lengths = Lengths.read(path)
    assert lengths.prompt == round(100 * 0.94 + 1000 * 0.06)
    assert lengths.output == round(10 * 0.94 + 200 * 0.06)
    assert (lengths.high_prompt, lengths.high_total) == (1000, 1200)
    assert lengths.context == pytest.approx((94 * 10 * 105 + 6 * 200 * 1100) / (94 * 10 + 6 * 200))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the columns are none; a file of lengths is CSV"),
        ("prompt\n3\n", "the columns are prompt; "),
        ("prompt,output,user\n1,2,3\n", "the columns are prompt, output, user"),
        ("prompt,prompt,output\n1,2,3\n", "the columns are prompt, prompt, output"),
        ("prompt,output\n", "line 1: requests is empty"),
        ("prompt,output\n8,8\n8,x\n", "line 3: output is 'x', but must be a whole number"),
        ("prompt,output\n8,0\n", "line 2: output is 0 tokens, but must be from 1"),
        ("prompt,output\n8\n", "line 2: a line has too few or too many cells"),
        ("prompt,output\n8,8,8\n", "line 2: a line has too few or too many cells"),
        ("prompt,output\n8,99999999999999999999\n", "line 2: output is '9999"),
        ("prompt,output\n8,8\n8," + "9" * 131_073, "line 3: it is no CSV (field larger than field limit"),
        ("prompt,output,weight\n8,8,-1\n", "line 2: weight is -1.0, but must be a finite number above 0"),
        ("prompt,output,weight\n8,8,some\n", "line 2: weight is 'some', but must be a number above 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(tmp_path, text, said):
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"lengths\.csv") as caught:
        Lengths.read(path)
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"none.csv can't be read"):
        Lengths.read(tmp_path / "none.csv")


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000), st.floats(1e-3, 1e3)), min_size=1, max_size=9))
def test_a_percentile_is_a_length_and_covers_so_many(requests):
    lengths = Lengths(tuple(requests))
    assert lengths.high_prompt in {prompt for prompt, *_ in requests}
    covered = sum(weight for prompt, _, weight in requests if prompt <= lengths.high_prompt)
    assert covered >= 0.95 * sum(weight for *_, weight in requests) * (1 - 1e-9)
    assert min(p for p, *_ in requests) <= lengths.context <= max(p + o / 2 for p, o, _ in requests) * (1 + 1e-9)


def test_the_parts_of_a_phase_are_all_of_it():
    assert PHASE.seconds == pytest.approx(1e-3 + 2e-4 + 3e-4 + 4e-5)
    assert PHASE.memory_bound_s == pytest.approx(5e-4 + 2e-4)
    assert PLAN.num_devices == 8
    assert PLAN.memory.peak_bytes == 2**30 + 2**28 + 2**20


def test_whole_numbers_may_be_written_with_a_point(tmp_path):
    path = tmp_path / "serving.json"
    write_serving_plan(PLAN, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stages": 1.0}))
    assert type(read_serving_plan(path).stages) is int
