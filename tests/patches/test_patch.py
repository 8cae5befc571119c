"""A patch guards itself, and says what doesn't fit."""

import types

import pytest

from alpa_stock_jax._patch import Patch, PatchError


def _module(**names):
    module = types.ModuleType("some.module")
    vars(module).update(names)
    return module


def _patch(**guards):
    return Patch(module="some.module", reason="twice is enough", apply=lambda module: None, **guards)


def test_what_is_there_with_its_signature_fits():
    _patch(expects={"f": ("a", "b"), "f.__name__": None}).check(_module(f=lambda a, b: a))


def test_a_missing_attribute_is_named_with_the_patch_and_the_versions():
    wanted = r"'twice is enough'.*some\.module\.g doesn't exist.*alpa 0\.2\.3, jax 0\.4\.30"
    with pytest.raises(PatchError, match=wanted):
        _patch(expects={"g": None}).check(_module())


def test_another_signature_is_named_with_what_was_expected():
    with pytest.raises(PatchError, match=r"some\.module\.f takes \('a', 'c'\), expected \('a', 'b'\)"):
        _patch(expects={"f": ("a", "b")}).check(_module(f=lambda a, c: a))


@pytest.mark.parametrize("name", ["no_such_package.x", "os.path.no_such_function"])
def test_what_a_patch_uses_elsewhere_must_exist(name):
    with pytest.raises(PatchError, match=name):
        _patch(uses=(name,)).check(_module())


def test_a_module_is_found_behind_a_function_of_its_name():
    # ray.util.placement_group is a module and, as an attribute of ray.util, a function
    _patch(uses=("ray.util.placement_group.placement_group_table",)).check(_module())
