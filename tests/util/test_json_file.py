"""How files are written, whole, where a link leads, and straight into what is no file; and which aren't read."""

import os
import pathlib
import stat
import threading

import pytest

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
