"""Files: JSON that is written whole, and YAML whose lines are known."""

import os
import pathlib
import re
import stat
import threading
from typing import Annotated

import pytest
from typing_extensions import TypedDict

from alpa_dejavu._util import yaml_file
from alpa_dejavu._util.format_fields import Index, Positive, file_format, listed
from alpa_dejavu._util.json_file import peek, read_text, write_whole
from alpa_dejavu._util.yaml_file import read_checked_yaml
from alpa_dejavu.calibration import chosen_calibration
from alpa_dejavu.calibration.history import Store
from alpa_dejavu.clusters import named_cluster, read_cluster
from alpa_dejavu.exports import read_model
from alpa_dejavu.planning.inference import Lengths
from alpa_dejavu.plans.plan_file import read_plan
from past_runs import run_of


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("first", "second"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_text(encoding="utf-8") == text
    assert len(list((tmp_path / "there").iterdir())) == 1


def test_what_is_no_file_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text(encoding="utf-8")))
    reader.start()
    write_whole(tmp_path / "pipe", "text")
    reader.join()
    assert read == ["text"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_reaches_the_disk_before_its_name_does(tmp_path, monkeypatch):
    done = []
    replace = os.replace

    def sync(handle):
        done.append("file" if stat.S_ISREG(os.fstat(handle).st_mode) else "folder")

    def renamed(*names):
        done.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", renamed)
    write_whole(tmp_path / "file", "text")
    assert done == ["file", "name", "folder"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't be written: Is a directory"):
        write_whole(tmp_path, "text")


def test_a_large_file_is_not_read_and_how_to_read_it_is_said(tmp_path, monkeypatch):
    (tmp_path / "large.json").write_text(" " * 2**16 + "[]")
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "0.0625")
    with pytest.raises(ValueError, match=r"larger than 0\.06 MiB, .*; set ALPA_DEJAVU_FILE_MIB to more"):
        read_text(tmp_path / "large.json", "write it again")
    with pytest.raises(ValueError, match=r"/dev/zero is larger than 0\.06 MiB"):
        read_text(pathlib.Path("/dev/zero"), "write it again")
    assert peek(tmp_path / "large.json") is None
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "1")
    assert peek(tmp_path / "large.json") == []
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "much")
    with pytest.raises(ValueError, match=r"ALPA_DEJAVU_FILE_MIB is 'much', but must be a number of MiB above 0"):
        read_text(tmp_path / "large.json", "write it again")


def test_links_in_a_circle_and_endless_names_are_no_files(tmp_path):
    circle, endless = tmp_path / "a", str(tmp_path / ("x" * 5000))
    circle.symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(circle)
    for path in (str(circle), endless):
        with pytest.raises(ValueError, match="can't be read"):
            read_plan(path)
        with pytest.raises(ValueError, match="can't be read"):
            read_cluster(path)
        with pytest.raises(ValueError, match="there is no file"):
            named_cluster(path)
        with pytest.raises(ValueError, match="there is no calibration"):
            chosen_calibration(path)
        with pytest.raises(ValueError, match="can't be written"):
            write_whole(pathlib.Path(path), "text")
        with pytest.raises(ValueError, match="can't be used"):
            Store(path).append(run_of())
        with pytest.raises(ValueError, match="can't be used"):
            Store(path).runs()


def test_a_byte_order_mark_is_read_over(tmp_path):
    """Of JSON, CSV, YAML and a script."""
    for name, text in (
        ("cluster.json", '{"version": 1, "name": "one", "hosts": [{"name": "a", "machine": "p3.8xlarge"}]}'),
        ("lengths.csv", "prompt,output\n64,8\n"),
        ("scenario.yaml", "version: 1\n"),
        ("run.sh", "python pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 4 "
                   "--max-position-embeddings 4 --vocab-size 16\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert read_cluster(tmp_path / "cluster.json").num_devices == 4
    assert Lengths.read(tmp_path / "lengths.csv") == Lengths.fixed(64, 8)
    assert read_checked_yaml(tmp_path / "scenario.yaml", dict, "").data == {"version": 1}
    assert read_model(tmp_path / "run.sh").hidden == 8


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
        ("a: 1\nb: []\n---\na: 1", 3, "a second document begins"),
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
