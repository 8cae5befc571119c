"""What processes leave that were killed, and what is removed of it."""

import pathlib

from real_hosts._leftovers import is_leftover, own_directory, own_name


def test_what_a_process_that_is_gone_has_made_is_left_over():
    name = own_name("0")
    assert not is_leftover(name)
    prefix, pid, started, rest = name.split("-")
    assert is_leftover(f"{prefix}-{pid}-{int(started) - 1}-{rest}")
    assert not is_leftover("somebody's")


def test_a_directory_goes_with_its_block_and_takes_leftovers_along():
    prefix, pid, started, _ = own_name("").split("-")
    left = pathlib.Path("/tmp", f"{prefix}-{pid}-{int(started) - 1}-left")
    left.mkdir()
    with own_directory() as one, own_directory() as other:
        assert one != other
        assert one.is_dir()
        assert not left.exists()
    assert not one.exists()
