"""Scenarios of the playground as texts: read, and refused where something in them is replaced."""

import re

import pytest

from alpa_dejavu.playground.scenarios import read_scenario


def read(folder, text):
    """Returns the scenario of a text."""
    path = folder / "scenario.yaml"
    path.write_text(text)
    return read_scenario(path)


def check_refused(folder, text, old, new, said):
    """Checks that a scenario with something in place of another thing is refused: with its line, why, and the guide."""
    assert text.count(old) == 1
    changed = text.replace(old, new)
    with pytest.raises(ValueError, match=r"scenario\.yaml, line \d+: .*; docs/guides/playground-sc") as caught:
        read(folder, changed)
    assert said in str(caught.value)
    line = int(re.search(r", line (\d+): ", str(caught.value))[1])
    # The line is one of those that differ, or, where something is missing, or wrong together, the one that it is in.
    differ = {n for n, one in enumerate(changed.splitlines(), 1) if one not in text.splitlines()}
    assert differ & {line, line + 1} or said.startswith(f"line {line}:") or re.search("twice|lacks|neither", said)
