"""Schedules of ours, and broken ones, with what PyTorch's pipelining has said of them: `tools/torch_schedules.py`."""

import json

import pytest

import torch_schedules
from alpa_dejavu.schedules import read_schedule

GOLDEN = json.loads(torch_schedules.FILE.read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in GOLDEN["cases"]}
OURS = [
    (name, *sizes) for name in torch_schedules.NAMED for sizes in torch_schedules.SIZES
]  # fmt: skip


@pytest.mark.parametrize(("name", "devices", "micro_batches"), OURS)
def test_pytorch_takes_the_very_file_that_we_write(name, devices, micro_batches):
    case = CASES[f"{name}, {devices} devices, {micro_batches} micro-batches"]
    assert case["text"] == torch_schedules.text_of(name, devices, micro_batches)
    assert case["refused"] == ""


@pytest.mark.parametrize("name", list(torch_schedules.BROKEN))
def test_we_refuse_what_pytorch_refuses(tmp_path, name):
    assert CASES[name]["refused"]
    file = tmp_path / "schedule.csv"
    file.write_text(CASES[name]["text"], encoding="utf-8")
    with pytest.raises(ValueError, match=r"schedule\.csv"):
        read_schedule(file)


def test_nothing_else_is_in_the_file():
    assert len(CASES) == len(GOLDEN["cases"]) == len(OURS) + len(torch_schedules.BROKEN)


@pytest.mark.torch
def test_pytorch_still_says_so():
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `exports`")
    assert torch_schedules.told()["cases"] == GOLDEN["cases"]
    assert torch.__version__.split("+")[0] == GOLDEN["torch"]
