"""009_reduction_servers.py: its rows are what the published formula says, and it says so where they aren't."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "009_reduction_servers.py"


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("example_009", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["009", "--servers", "1"])
    return module


def test_a_row_for_each_number_of_servers(example, capsys):
    assert example.main() == 0
    none, one = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()[0].isdigit()][:2]
    # Four hosts of 1.25 GB/s: a ring takes 2 * 3 / 4 / 1.25 s, and with one server it is 24 / 18 / 1.25 s.
    assert none[:5] == ["0", "0", "0%", "1.2000", "1.2000"]
    assert one[:5] == ["1", "1", "33%", "1.0667", "1.0667"]
    assert float(one[6]) < float(none[6])


def test_what_differs_from_the_formula_is_found_out(example, monkeypatch):
    monkeypatch.setattr(example, "published_s", lambda num_bytes, hosts, servers: 1.0)
    assert example.main() == 1
