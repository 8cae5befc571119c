"""What is kept from one process to the next: read as it was written, or as if it weren't there."""

import concurrent.futures
import errno
import gzip
import json
import os
import pathlib
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu._util import json_file
from alpa_dejavu.cli import doctor
from alpa_dejavu.cli.main import main
from alpa_dejavu.planning.search.models.model_cache import ModelCache, chosen_cache, default_cache, packed_json

KEY, OTHER = {"model": "a", "num_layers": 4}, {"model": "b", "num_layers": None}


@pytest.fixture
def cache(tmp_path):
    return ModelCache(tmp_path / "made" / "cache")


def same(data):
    return data


def entry(cache):
    (path,) = cache.folder.iterdir()
    return path


def test_what_is_written_is_read_by_others(cache):
    cache.write(KEY, {"numbers": [0.1, 1e-300, 2**60]})
    assert ModelCache(cache.folder).read(KEY, same) == {"numbers": [0.1, 1e-300, 2**60]}
    assert cache.read(OTHER, same) is None


def broken(of, text):
    """What may be found in place of an entry."""
    return {
        "nothing": b"",
        "no gzip": b"something else",
        "truncated": of[:-9],
        "flipped": of[:30] + bytes([of[30] ^ 255]) + of[31:],
        "no JSON": gzip.compress(b"{"),
        "no text": gzip.compress(b"\xff\xfe\xfd"),
        "a list": gzip.compress(b"[1]"),
        "deep": gzip.compress(b"[" * 100_000),
        "of another key": packed_json(json.loads(text) | {"key": OTHER}),
        "of another version": packed_json(json.loads(text) | {"version": 0}),
        "without data": packed_json({"version": 1, "key": KEY}),
        "of other data": packed_json({"version": 1, "key": KEY, "data": []}),
    }


@pytest.mark.parametrize("how", [*broken(b"0" * 40, "{}")])
def test_what_is_broken_is_ignored_with_a_line_and_replaced(cache, caplog, how):
    cache.write(KEY, {"number": 3})
    path = entry(cache)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(broken(path.read_bytes(), text)[how])
    assert cache.read(KEY, lambda data: data["number"]) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(path) in record.getMessage()
    assert "\n" not in record.getMessage()
    cache.write(KEY, {"number": 4})
    assert cache.read(KEY, lambda data: data["number"]) == 4
    assert len(caplog.records) == 1


def test_what_is_too_large_before_it_is_unpacked_is_not_read(cache, caplog, monkeypatch):
    cache.write(KEY, "0" * 10_000)
    with entry(cache).open("r+b") as file:
        file.truncate(2**40)
    assert cache.read(KEY, same) is None
    assert "it has 1 TiB, but must have at most 64 MiB; if that is meant, set ALPA_" in caplog.text
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "much")
    assert cache.read(KEY, same) is None
    assert "ALPA_DEJAVU_FILE_MIB is 'much', but must be a number of MiB above 0, and at most " in caplog.text
    assert "; unset it for 1024" in caplog.text
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "1e308")
    assert cache.read(KEY, same) is None
    assert "ALPA_DEJAVU_FILE_MIB is '1e308'" in caplog.text


def test_a_full_disk_leaves_nothing_behind(cache, caplog, monkeypatch):
    cache.write(OTHER, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json_file.os, "replace", full)
    cache.write(KEY, 1)
    cache.write(KEY, 1)
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert cache.size()[0] == 1
    assert cache.read(OTHER, same) == 1


def test_the_least_recently_used_go_first(tmp_path):
    sizes = ModelCache(tmp_path / "sizes")
    sizes.write({"n": 0}, 1)
    cache = ModelCache(tmp_path / "cache", 3.5 * sizes.size()[1])
    for n in range(3):
        cache.write({"n": n}, 1)
        for path in cache.folder.iterdir():
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
    assert cache.read({"n": 0}, same) == 1
    cache.write({"n": 3}, 1)
    assert [n for n in range(4) if cache.read({"n": n}, same) == 1] == [0, 2, 3]


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("ALPA_DEJAVU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache().folder == tmp_path / "alpa-dejavu" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache().folder == pathlib.Path.home() / ".cache" / "alpa-dejavu" / "models"
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "here"))
    assert default_cache().folder == tmp_path / "here"
    assert default_cache().most_bytes == 512 * 2**20
    assert chosen_cache(None).folder == tmp_path / "here"
    assert chosen_cache(tmp_path / "there").folder == tmp_path / "there"
    assert chosen_cache(False) is None


def test_its_size_is_the_environments(monkeypatch):
    monkeypatch.setenv("ALPA_DEJAVU_CACHE_MIB", "1.5")
    assert default_cache().most_bytes == 1.5 * 2**20
    monkeypatch.setenv("ALPA_DEJAVU_CACHE_MIB", "0")
    assert default_cache() is None
    for wrong in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("ALPA_DEJAVU_CACHE_MIB", wrong)
        with pytest.raises(ValueError, match=f"ALPA_DEJAVU_CACHE_MIB is '{wrong}', but must be a number of MiB"):
            default_cache()


def test_the_doctor_knows_it(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_tried", lambda what, code, remedy: doctor.Check(what, True, "tried"))
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "cache"))
    default_cache().write(KEY, 1)
    shown = CliRunner().invoke(main, ["doctor"]).stdout
    assert re.search(r"has 1 entries, \d+ bytes of at most 0\.50 GiB", " ".join(shown.split()))
    assert "nothing to do" in shown
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path / "file" / "cache"))
    assert "set ALPA_DEJAVU_CACHE to a folder that can be written" in CliRunner().invoke(main, ["doctor"]).stdout
    monkeypatch.setenv("ALPA_DEJAVU_CACHE_MIB", "much")
    assert "must be a number of MiB" in CliRunner().invoke(main, ["doctor"]).stdout


def test_an_entry_is_replaced(cache):
    cache.write(KEY, 1)
    cache.write(KEY, 2)
    assert cache.read(KEY, same) == 2
    assert cache.size()[0] == 1


def test_what_would_fill_memory_is_not_unpacked(cache, caplog, monkeypatch):
    cache.write(KEY, "0" * 10_000)
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", str(16_000 / 2**20))
    assert cache.read(KEY, same) is None
    assert "unpacks to more than 1000 bytes of JSON; if that is meant, set ALPA_DEJAVU_FILE_MIB to 1 " in caplog.text
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "1")
    assert cache.read(KEY, same) == "0" * 10_000


def test_a_folder_in_the_place_of_an_entry_is_no_entry(cache, caplog):
    cache.write(KEY, 1)
    path = entry(cache)
    path.unlink()
    path.mkdir()
    assert cache.read(KEY, same) is None
    cache.write(KEY, 1)
    cache.write(KEY, 1)
    assert len(caplog.records) == 1


def test_where_nothing_can_be_written_that_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = ModelCache(tmp_path / "file" / "cache")
    assert cache.read(KEY, same) is None
    cache.write(KEY, 1)
    cache.write(OTHER, 1)
    (record,) = caplog.records
    assert "can't be written" in record.getMessage()
    assert "no folder" in cache.why_not_written()


def test_what_is_larger_than_the_cache_may_be_is_left(tmp_path):
    cache = ModelCache(tmp_path / "cache", 10)
    cache.write(KEY, list(range(100)))
    assert cache.read(KEY, same) is None


def test_readers_never_meet_half_an_entry(cache, caplog):
    data = list(range(20_000))
    cache.write(KEY, data)

    def at_work(_):
        own = ModelCache(cache.folder)
        own.write(KEY, data)
        return own.read(KEY, same)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(found == data for found in pool.map(at_work, range(40)))
    assert not caplog.records
    assert cache.size()[0] == 1
