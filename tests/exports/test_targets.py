"""Targets: their files are written whole, and a plan that they can't run is refused with its stage, rule and remedy."""

import dataclasses

import pytest

from alpa_dejavu.exports import TARGETS, Target, Writer, export, named_target
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from plans import example_plan, hardware


def test_alpa_is_a_target():
    plan = example_plan(hardware=hardware(devices=4))
    check_target(TARGETS["alpa"], [(plan, None), (dataclasses.replace(plan, schedule="zb_h1"), None)])


def test_the_conformance_suite_sees_what_is_wrong():
    class Random(Writer):
        def write(self, plan, model):
            self.count = getattr(self, "count", 0) + 1
            return {"file": str(self.count)}

    class Outside(Writer):
        def write(self, plan, model):
            return {"../file": "text"}

    plan = example_plan(hardware=hardware(devices=4))
    with pytest.raises(AssertionError, match="written again"):
        check_target(Target("alpa", "1", Random(), RUNTIMES["alpa"]), [(plan, None)])
    with pytest.raises(AssertionError, match="leads out of the folder"):
        check_target(Target("alpa", "1", Outside(), RUNTIMES["alpa"]), [(plan, None)])
    with pytest.raises(AssertionError, match="none of the plans"):
        check_target(TARGETS["alpa"], [(dataclasses.replace(plan, schedule="zb_h1"), None)])


def test_an_unknown_target_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"to is 'alpaca', but must be one of alpa.*did you mean 'alpa'"):
        named_target("alpaca")
    with pytest.raises(ValueError, match="alpa can't run the plan: no zb_h1 there; plan with one of 1f1b"):
        export(dataclasses.replace(example_plan(), schedule="zb_h1"), "alpa", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_sizes_as_text_are_the_sizes_again():
    for name in ("gpt-39b", "gpt2-125m"):
        size = transformer_size(name)
        assert Transformer.of_text(size.text) == size
    assert transformer_size("moe-70b") is None
    with pytest.raises(ValueError, match=r"heads=two, but must have a whole number"):
        transformer_size("transformer:heads=two")
    with pytest.raises(ValueError, match="did you mean 'hidden'"):
        transformer_size("transformer:hiden=8")
