"""README.md says what is patched and what is tested."""
import pytest

from alpa_stock_jax import _registry
from alpa_stock_jax._table import replace_table


def test_reasons_are_one_line_and_different():
    reasons = [patch.reason for patch in _registry.patches() if not patch.module.startswith("jax")]
    assert len(set(reasons)) == len(reasons)
    assert not [reason for reason in reasons if "\n" in reason or len(reason) > 110]


def test_a_text_without_marks_is_refused():
    with pytest.raises(ValueError, match="patches: begin"):
        replace_table("no table here")
