"""The page of a plan for inference: both phases, whole bars, and nothing of users' that acts."""

import dataclasses
import re

import pytest

from alpa_dejavu.report.serving import serving_report
from serving_plans import PLAN


def test_both_phases_are_shown_as_bars_and_in_a_table():
    page = serving_report(PLAN)
    assert page.count("first token: 1.54 ms") == page.count("each next token: 1.54 ms") == 1
    for said in ("<td>300 us</td>", "computing: 1 ms", "12345 tokens/s", "by the auto-sharding engine", "a note"):
        assert said in page
    bars = [re.findall(r"width: ([0-9.]+)%", bar) for bar in re.findall(r'<div class="phase">.*?</div>', page)]
    assert len(bars) == 2
    for shares in bars:
        assert sum(map(float, shares)) == pytest.approx(100, abs=1e-2)


def test_what_users_named_is_escaped_and_no_script_runs():
    page = serving_report(dataclasses.replace(PLAN, model="<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
