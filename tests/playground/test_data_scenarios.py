"""Scenario files that say where the data go: what is read, what is refused with its line, and the gallery."""

import dataclasses
import re

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.playground.data import MOVES, SPLITS, move, split
from alpa_dejavu.playground.scenarios import compared, details, read_scenario, run_scenario

DATA = """\
version: 1
problem: digits-mlp
cluster: {name: p3.8xlarge, hosts: 2}
compute_s: 0.01
data:
  moved-points: {base: {by-label: {labels: 2, groups: similar}}, share: 0.2}
moves:
  by-loss: {share: 0.3, rest: 2}
sample_bytes: 100
exchanges: [gossip]
until: {steps: 50}
seeds: [0, 1]
"""


def read(tmp_path, text):
    path = tmp_path / "data.yaml"
    path.write_text(text)
    return read_scenario(path)


def test_splits_and_policies_are_read_as_the_file_says(tmp_path):
    job = read(tmp_path, DATA).job
    base = split("by-label", labels=2, groups="similar")
    assert job.shards == split("moved-points", base=base, share=0.2)
    assert job.moves == move("by-loss", share=0.3, rest=2)
    assert job.bytes_of_a_sample() == 100
    plain = read(tmp_path, DATA.replace("sample_bytes: 100\n", "")).job
    assert plain.bytes_of_a_sample() == 64 * 4 + 4


def test_a_run_says_what_was_moved(tmp_path):
    scenario = read(tmp_path, DATA)
    said = details(compared([run_scenario(dataclasses.replace(scenario, seeds=(1,)))]))
    assert any(re.search(r"samples moved: \d+, \d+ different ones, .*bytes", line) for line in said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("moved-points: {", "moved-point: {", "there is no split 'moved-point'; did you mean 'moved-points'"),
        ("{base: {by-label", "{base: {by-lable", "there is no base 'by-lable'; did you mean 'by-label'"),
        ("labels: 2", "labels: 0", "labels is 0, but must be a whole number of at least 1"),
        ("labels: 2", "labels: 400", "the number of samples is 1437, but must be at least 3200"),
        ("{by-label: {labels: 2, groups: similar}}", "{dirichlet: {alpha: 0}}", "alpha is 0.0, but must be a finite"),
        ("{by-label: {labels: 2, groups: similar}}", "{dirichlet: {least: 180}}", "samples is 1437, but must be at le"),
        ("{by-label: {labels: 2, groups: similar}}", "{dirichlet: {alpha: 1e-3, least: 150}}", "alpha is 0.001, but m"),
        ("  by-loss: {", "  by-los: {", "no policy of moving samples 'by-los'; did you mean"),
        ("base: {by-label: {labels: 2, groups: similar}}", "base: os:system", "there is no base 'os:system'"),
        ("base: {by-label: {labels: 2, groups: similar}}, ", "", "'moved-points' lacks the setting 'base'"),
        ("share: 0.3", "share: 0", "share is 0.0, but must be above 0 and at most 1"),
        ("rest: 2", "metric: loss", "'metric' is no setting of 'by-loss'"),
        ("sample_bytes: 100", "sample_bytes: -1", "sample_bytes is -1, but must be bytes of at least 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, old, new, said):
    assert DATA.count(old) == 1
    text = DATA.replace(old, new)
    with pytest.raises(ValueError, match=r"data\.yaml, line \d+: .*; docs/guides/playground-sc") as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    line = int(re.search(r", line (\d+): ", str(caught.value))[1])
    (changed,) = [n for n, one in enumerate(text.splitlines(), 1) if one not in DATA.splitlines()]
    # What only shows when the samples are spread, or of all settings together, is said of the key, in the line before.
    assert line in (changed, changed - 1)


def test_data_without_samples_and_moves_without_data_are_refused(tmp_path):
    alone = DATA.replace("problem: digits-mlp", "num_bytes: 1e6")
    with pytest.raises(ValueError, match=r"line 5: data is there, but time alone is simulated.*name a problem"):
        read(tmp_path, alone)
    short = re.sub(r"data:\n.*\n", "", DATA)
    with pytest.raises(ValueError, match=r"line 5: moves is there without data.*add a split"):
        read(tmp_path, short)
    without = re.sub(r"data:\n.*\n", "", alone)
    with pytest.raises(ValueError, match=r"line 5: moves is there, but time alone is simulated.*losses or gradients"):
        read(tmp_path, without)


def test_the_list_has_splits_and_policies():
    said = CliRunner().invoke(main, ["playground", "list"]).output
    assert all(f"  {name} " in said for name in (*SPLITS, *MOVES))
