"""YAML of users: plain data alone, with the line of what is wrong, and nothing in it is called."""

import re
from typing import Annotated

import pytest
from typing_extensions import TypedDict

from alpa_dejavu._util import yaml_file
from alpa_dejavu._util.format_fields import Index, Positive, file_format, listed
from alpa_dejavu._util.yaml_file import read_checked_yaml


@file_format
class Small(TypedDict):
    a: Positive
    b: Annotated[list[Index], listed("a list of whole numbers")]


def read(tmp_path, text):
    path = tmp_path / "small.yaml"
    path.write_text(text)
    return read_checked_yaml(path, Small, "look at another").data


def test_numbers_may_be_written_as_in_json(tmp_path):
    assert read(tmp_path, "a: 1e-3\nb: [1,\n  2]") == {"a": 0.001, "b": [1, 2]}
    assert read(tmp_path, '{"a": 2.5E+2, "b": []}') == {"a": 250.0, "b": []}
    assert read(tmp_path, "a: 1.4e9\nb: []") == {"a": 1.4e9, "b": []}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [1,\n -2]", 3, "b[1] is -2, but must be a whole number of at least 0"),
        ("a: 1\nb: []\nc: 2", 3, "c is an unknown key (known are a, b)"),
        ("a: .nan\nb: []", 1, "a is NaN, but must be a number above 0"),
        ("a: .inf\nb: []", 1, "a is Infinity, but must be a number above 0"),
        ("a: 1", 1, "the file lacks the key 'b'"),
        ("a: 1\na: 2", 2, "the key 'a' is there twice"),
        ("a: 1\n1: 2", 2, "the key '1' must be text"),
        ("a: 1\nb: [&x 1,\n*x]", 2, "this is named by an anchor"),
        ("b: []\na: !!python/object/apply:os.system [ls]", 2, "this is 'python/object/apply:os.system', but must be"),
        ("b: []\na: 2020-01-01", 2, "this is 'timestamp', but must be"),
        ("a: 1\nb: [", 2, "this isn't YAML"),
        ("a: 1\nb: []\n---\na: 1", 3, "this isn't YAML"),
        ("[" * 40 + "]" * 40, 1, "this is in lists more than 30 deep"),
        ("[" * 5000 + "]" * 5000, None, "it has lists in lists more than 30 deep"),
        ("a: " + "9" * 5000, None, "this isn't YAML: Exceeds the limit"),
        ("", None, "the file is empty"),
        ("a: \x00", None, "this isn't YAML"),
        ("#" * 2**18, None, "it has 0.25 MiB, but must have at most 0.12 MiB"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_remedy(tmp_path, text, line, said):
    where = "" if line is None else f", line {line}"
    with pytest.raises(ValueError, match=rf"small\.yaml{where}: {re.escape(said)}.*; look at another$"):
        read(tmp_path, text)


def test_a_file_is_gone_through_once(tmp_path, monkeypatch):
    composed = []
    compose = yaml_file.yaml.compose
    monkeypatch.setattr(yaml_file.yaml, "compose", lambda text, **given: composed.append(1) or compose(text, **given))
    assert read(tmp_path, "a: 1\nb: []") == {"a": 1, "b": []}
    with pytest.raises(ValueError, match=r"line 2: b\[1\] is -2"):
        read(tmp_path, "a: 1\nb: [1, -2]")
    assert composed == [1, 1]
