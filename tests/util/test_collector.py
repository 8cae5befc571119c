"""The garbage collector is as it was after a pause, whatever happens in it."""

import gc

import pytest

from alpa_dejavu._util.collector import collector_paused


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_as_it_was(running):
    before = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
            with collector_paused():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is running
        with pytest.raises(KeyError), collector_paused():
            raise KeyError
        assert gc.isenabled() is running
    finally:
        (gc.enable if before else gc.disable)()
