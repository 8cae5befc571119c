"""Alpa finds in jax what it imports from it, and what stock jax had stays what it was."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_stock_jax._frozen_dict import FrozenDict
from alpa_stock_jax._registry import apply_before
from alpa_stock_jax.names import PATCHES

apply_before()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.module)
def test_every_name_stands_for_what_it_says(patch):
    import importlib
    import pkgutil

    module = importlib.import_module(patch.module)
    sources = getattr(patch.apply, "keywords", {}).get("sources", {})
    assert sources or patch.module == "jax.experimental"
    for name, source in sources.items():
        assert getattr(module, name) is pkgutil.resolve_name(source)


@given(st.dictionaries(st.text(), st.integers()))
def test_a_frozen_dictionary_is_one_that_can_be_hashed(contents):
    frozen = FrozenDict(contents)
    assert dict(frozen) == contents
    assert frozen == FrozenDict(dict(reversed(contents.items())))
    assert hash(frozen) == hash(FrozenDict(dict(reversed(contents.items()))))
    assert pickle.loads(pickle.dumps(frozen)) == frozen
