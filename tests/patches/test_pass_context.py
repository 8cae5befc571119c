"""Options are there for the passes within Alpa's context, and gone after it."""
from alpa.util import XlaPassContext
from jax._src.lib import xla_extension as xe

from alpa_stock_jax.pass_context import option


def test_options_are_set_within_the_context_only():
    assert option("some::option") is None
    with XlaPassContext({"some::option": 3}):
        assert option("some::option") == 3
        assert option("another::option", "default") == "default"
    assert option("some::option") is None


def test_events_of_the_fork_are_accepted():
    for name in ("reset_event_context", "computation_wait_events", "set_idx_to_uuid", "set_num_device_on_host"):
        assert getattr(xe, name)(1) is None
