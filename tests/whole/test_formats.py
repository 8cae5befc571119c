"""Declared formats: of all that is wrong with a file the first is told, with its line, however much there is."""

import json

import pytest

from alpa_dejavu._util import json_file, json_text
from alpa_dejavu._util.json_text import line_of, line_of_no_json, strict_json
from alpa_dejavu.cli._schemas import FOLDER, schema_texts
from alpa_dejavu.clusters import read_cluster
from alpa_dejavu.plans.plan_file import plan_data, read_plan
from plans import example_plan


def plan_with(tmp_path, change):
    data = plan_data(example_plan())
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def test_the_schemas_are_those_of_the_declared_types():
    """They are written again by `python -m alpa_dejavu.cli._schemas`."""
    assert schema_texts() == {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}


def test_of_many_wrong_keys_the_first_is_told_and_one_line_is_looked_for(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(json_file, "line_of", lambda text, where: looked.append(where) or line_of(text, where))

    def change(data):
        data["stages"][1] |= {f"wrong_{n}": n for n in range(80)}
        data["notes"] = [1]

    path = plan_with(tmp_path, change)
    with pytest.raises(ValueError, match=r"line \d+: stages\[1\]\.wrong_0 is an unknown key") as caught:
        read_plan(path)
    (line,) = [n for n, text in enumerate(path.read_text().splitlines(), 1) if "wrong_0" in text]
    assert f"plan.json, line {line}:" in str(caught.value)
    assert looked == [("stages", 1, "wrong_0")]


def test_a_wrong_version_is_told_before_all_else(tmp_path):
    with pytest.raises(ValueError, match=r"line \d+: version is 2, but must be 1"):
        read_plan(plan_with(tmp_path, lambda data: data.update(model=3, version=2)))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("version", True, "version is true, but must be 1"),
        ("num_micro_batches", 10**18, "must be a whole number of micro-batches, at least 1, and at most 65536"),
        ("num_layers", 10**200, "must be a whole number of layers, at least 1, and at most 1e"),
        ("iteration_time_s", 1e300, "must be seconds above 0, and at most 1e"),
        ("iteration_time_s", 1e-300, "must be seconds above 0, and at least 1e-100"),
        ("cluster", None, "cluster is null, but must be text"),
        ("priced_by", {"zero": [False]}, r"priced_by\.zero\[0\] is false, but must be 0, 2 or 3"),
        ("priced_by", {"layers": 0}, r"priced_by\.layers is 0, but must be a whole number of layers"),
        ("hardware", None, "hardware is null, but must be an object: the hosts"),
        ("confidence", 7, "confidence is 7, but must be an object"),
        ("notes", [[[[]]]], r"notes\[0\] is \[\[\[\]\]\], but must be text"),
    ],
)
def test_values_that_no_plan_has_are_named(tmp_path, key, value, said):
    with pytest.raises(ValueError, match=rf"plan\.json, line \d+: .*{said}"):
        read_plan(plan_with(tmp_path, lambda data: data.update({key: value})))


@pytest.mark.parametrize("depth", [101, 900, 100_000])
@pytest.mark.parametrize("ends", ["[]", ('{"a":', "}")])
def test_lists_in_lists_end(tmp_path, depth, ends):
    (tmp_path / "deep.json").write_text(ends[0] * depth + ("" if ends[0] == "[" else "1") + ends[1] * depth)
    for read in (read_plan, read_cluster):
        with pytest.raises(ValueError, match=r"deep\.json, line 1: this isn't JSON: lists in lists more than 100 deep"):
            read(tmp_path / "deep.json")


def test_a_key_deep_inside_is_found():
    assert strict_json("[" * 100 + "]" * 100)
    with pytest.raises(ValueError, match="more than 100 deep"):
        strict_json("[" * 101 + "]" * 101)


def test_half_a_character_is_refused(tmp_path):
    path = plan_with(tmp_path, lambda data: data.update(model="\ud800"))
    with pytest.raises(ValueError, match="half a character"):
        read_plan(path)
    path = plan_with(tmp_path, lambda data: data.update(model="\U0001f600"))
    assert read_plan(path).model == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": {"b": 1},\n"c": [[],\n[2, NaN]]}', 3),
        ('{"a": [{"b": 1,\n"c": "}{",\n"b": 2}]}', 1),
        ('{"\\u0061": 1,\n"a": 2}', 1),
        ('{"a": "NaN \\" 1e999",\n"b": [{"a": 1, "b": {}}],\n"c": "\\ud800"}', 3),
        ('{"a": 1,\n"a": [{}, 1,\n1e999]}', 3),
        ("[1,\n1e999]", 2),
        ("[1,\n1e99," + "9" * 299 + ",\n" + "9" * 300 + "]", 3),
        ("[1, 2]", 1),
    ],
)
def test_the_line_of_what_is_no_json_is_known(text, line):
    assert line_of_no_json(text) == line


def test_what_is_no_json_deep_in_a_large_text_is_found_by_going_through_it_once(monkeypatch):
    looked = []
    finite = json_text._PARSERS["parse_float"]
    monkeypatch.setitem(json_text._PARSERS, "parse_float", lambda number: looked.append(number) or finite(number))
    assert line_of_no_json('{"a":' * 90 + "[" + "1.5, 2e3," * 1000 + "\n1e999]" + "}" * 90) == 2
    assert looked == ["2e3"] * 1000 + ["1e999"]


def test_a_file_with_endless_errors_is_none(tmp_path):
    path = plan_with(tmp_path, lambda data: data.update({f"wrong_{n}": n for n in range(10_001)}))
    with pytest.raises(ValueError, match=r"line 1: the file has 10001 errors, so it is none of this kind"):
        read_plan(path)
    path = plan_with(tmp_path, lambda data: data.update(stages=[{}] * 10_001))
    with pytest.raises(ValueError, match=r"stages\[0\] lacks the key 'layers'"):
        read_plan(path)
    lost = {f"host-{n}": {} for n in range(10_001)}
    path = plan_with(tmp_path, lambda data: data.update(contingencies={"plans": [], "hosts": lost}))
    with pytest.raises(ValueError, match=r"contingencies\.plans is \[\], but must be a list of at least one plan"):
        read_plan(path)
    other = {"iteration_time_s": 1.0, "num_micro_batches": 1, "stages": plan_data(example_plan())["stages"]}
    path = plan_with(tmp_path, lambda data: data.update(contingencies={"plans": [other], "hosts": lost}))
    with pytest.raises(ValueError, match=r"hosts is .*without each; it has 10001 names, but may have 10000"):
        read_plan(path)
