"""What commands print on a pseudo-terminal: at 80 columns no figure is cut, and at 60 `--wide` shows all the same."""

import pathlib
import re
import shlex

import pytest
from rich.cells import cell_len

from alpa_dejavu.plans.plan_file import write_plan
from plans import hardware, stage, whole_plan
from terminal import shown

DATA = pathlib.Path(__file__).parents[1] / "whole" / "data"
SCENARIO = """\
version: 1
problem: sparse-least-squares
cluster: {name: p3.8xlarge}
compute_s: 0.5
exchanges: [all-reduce, async-server]
until: {steps: 5}
seeds: [0, 1]
looks: 5
target: {loss: 1e3}
"""
PLANNING = "plan --model gpt-125m --cluster p3.16xlarge --hosts 2 --batch 64 --layers 4"
COMPARING = "compare --model gpt-125m --batch 64 --layers 4 --micro-batches 8"
MADE = [
    f"{PLANNING} --micro-batches 8 --other-schedules --steps 1000 --json made.json",
    f"{PLANNING} --micro-batches 16 --objective pareto --tolerate 0 --json other.json",
    "playground run small.yaml --json run.json",
]
SAME = [
    "explain many.json",
    f"calibration show {DATA / 'calibration-1.json'}",
    f"calibration show {DATA / 'database-1.json'}",
    "diff many.json many.json",
    "playground list",
    "models",
    "machines",
    "machines gb200-nvl72",
    "playground compare run.json run.json",
    f"{COMPARING} --cluster '2 x p3.16xlarge' --cluster g4dn.12xlarge --saving offload --saving remat+ZeRO --steps 9",
]
"""What prints the same whenever it runs."""
QUICK = [
    *MADE, *SAME, "estimate made.json", "explain made.json", "diff made.json other.json",
    "replan made.json --without p3.16xlarge-0", "history --history runs.sqlite",
    "playground draw-jobs trace.csv --seed 1", "--help", "plan --help", "playground jobs --help",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("eighty")
    (made / "small.yaml").write_text(SCENARIO)
    hosts = [f"p3.16xlarge-{n}" for n in range(8)]
    stages = [
        stage(
            (2 * n, 2 * n + 1),
            (1, 4),
            (1, 4),
            hosts=(hosts[n // 2],),
            memory_bytes=(20 - n) * 2.0**29,
            resident_bytes=1e9,
            temporary_bytes=1e9,
        )
        for n in range(16)
    ]
    many = whole_plan(stages=(*stages,), hardware=hardware(8), notes=("it leaves 5 % of the memory free " * 4,))
    write_plan(many, made / "many.json")
    return made


@pytest.fixture(scope="module")
def printed(folder):
    """What each quick command printed at 80 and at 60 columns, and with `--wide` at 60 and at 1000."""
    runs = [(80, line) for line in MADE]
    runs += [(width, line) for width in (80, 60) for line in QUICK if line not in MADE]
    runs += [(width, f"{line} --wide") for width in (60, 1000) for line in SAME]
    found = shown([(width, shlex.split(line), {}) for width, line in runs], folder)
    return dict(zip(runs, found, strict=True))


def check(lines, width):
    text = "\n".join(lines)
    assert "…" not in text
    assert [line for line in lines if cell_len(line) > width] == []
    assert not re.search(r"\de[-+]\d", text), "no figure has an exponent"


@pytest.mark.parametrize("line", QUICK)
def test_at_eighty_columns_nothing_is_cut(printed, line):
    lines, status = printed[80, line]
    assert status == 0, "\n".join(lines)
    check(lines, 80)


@pytest.mark.parametrize("line", SAME)
def test_at_sixty_columns_wide_shows_all_figures_and_names(printed, line):
    (narrow, _), (wide, _) = printed[60, f"{line} --wide"], printed[1000, f"{line} --wide"]
    words = re.split(r"\s+", " ".join(wide))
    assert len(words) > 10
    text = "".join("".join(narrow).split())
    assert [word for word in words if len(word) < 24 and word not in text] == []


@pytest.mark.parametrize("line", [line for line in QUICK if line not in MADE])
def test_at_sixty_columns_nothing_is_cut(printed, line):
    lines, status = printed[60, line]
    assert status == 0, "\n".join(lines)
    if "--help" not in line:  # click's own lines for options are as wide as their names
        check(lines, 60)


def test_equal_stages_stand_in_one_row_and_what_is_left_out_is_named(printed):
    lines, _ = printed[80, "explain many.json"]
    assert any(re.match(r"0-15 +0-31 +1x4 +p3\.16xlarge-\[0-7\] ", line) for line in lines)
    assert any("--wide shows all" in line for line in lines)
    wide, _ = printed[60, "explain many.json --wide"]
    assert any(re.match(r"15 +30-31 ", line) for line in wide)
    assert not any("--wide shows all" in line for line in wide)


def test_sizes_that_no_terminal_has_change_nothing(folder, printed):
    words = shlex.split("explain many.json")
    told = [{"COLUMNS": "0"}, {"COLUMNS": "-5"}, {"COLUMNS": "many"}]
    assert shown([(80, words, each) for each in told], folder) == [printed[80, "explain many.json"]] * 3
