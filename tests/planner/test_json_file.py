"""How files are written: whole, where a link leads, and straight into what is no file."""

import os
import threading

import pytest

from alpa_dejavu._json_file import write_whole


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


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't be written: Is a directory"):
        write_whole(tmp_path, "text")
