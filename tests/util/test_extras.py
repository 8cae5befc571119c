"""Packages that an extra installs: what is said where one isn't there."""

import sys

import pytest

from alpa_dejavu._util.extras import need
from alpa_dejavu.playground import problem


def test_what_is_installed_is_not_missed():
    need("playground", "json", "numpy")


def test_what_is_not_installed_is_named_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(RuntimeError, match=r'sklearn is not installed: pip install "alpa-dejavu\[playground\]"'):
        problem("digits-mlp")
