"""`alpa-dejavu why`, and a calibration from a trace, on recorded traces."""

import json
from pathlib import Path

import pytest

from alpa_dejavu.calibration.traces import measured_steps, median_step, read_trace
from alpa_dejavu.cli.main import main

TRACES = Path(__file__).parents[1] / "calibration" / "traces"
RANKS = [str(TRACES / f"torch_rank{n}.json.gz") for n in (0, 1)]
MODEL = "transformer:hidden=64,blocks=2,heads=2,vocabulary=2048,sequence=64"
MACHINE = """
version: 1
name: two-cores
devices_per_host: 2
device:
  name: core
  memory_bytes: {value: 8, unit: GiB, source: a guess}
  flop_per_s: {float32: {value: 100, unit: GFLOP/s, source: a guess}}
  vector_flop_per_s: {value: 10, unit: GFLOP/s, source: a guess}
  memory_bytes_per_s: {value: 10, unit: GB/s, source: a guess}
within:
  latency_s: {value: 100, unit: us, source: a guess}
  bytes_per_s: {value: 1, unit: GB/s, source: a guess}
between:
  latency_s: {value: 100, unit: us, source: a guess}
  bytes_per_s: {value: 1, unit: GB/s, source: a guess}
"""


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)), standalone_mode=True)
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    (folder / "machine.yaml").write_text(MACHINE)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--model", MODEL, "--cluster", str(folder / "machine.yaml"), "--batch", "4",
              "--precision", "fp32", "--runtime", "fsdp", "--zero", "0", "--tensor", "1", "--pipeline", "1",
              "--micro-batches", "1", "--remat", "none", "--schedule", "1f1b", "--no-cache",
              "--json", str(folder / "plan.json")])  # fmt: skip
    assert ended.value.code == 0
    return folder / "plan.json"


def test_parts_of_a_step_stand_beside_the_plans(capsys, plan):
    code, out, _ = run(capsys, "why", *RANKS, "--plan", plan)
    assert code == 0
    ranks = median_step([step for path in RANKS for step in measured_steps(read_trace(Path(path)))[0]])
    assert f"{max(step.seconds for step in ranks) * 1e3:.4g} ms measured" in out
    assert "predicted" in out
    for part in ("computing", "attention", "optimizer", "waiting for other ranks"):
        assert part in out


def test_a_folder_stands_for_its_traces_and_two_of_one_rank_are_refused(capsys, tmp_path):
    for n, path in enumerate(RANKS):
        (tmp_path / f"rank{n}.json.gz").write_bytes(Path(path).read_bytes())
    code, out, _ = run(capsys, "why", tmp_path)
    assert code == 0
    assert "2 ranks recorded" in out
    (tmp_path / "again.json.gz").write_bytes(Path(RANKS[0]).read_bytes())
    code, _, err = run(capsys, "why", tmp_path)
    assert code == 1
    assert "rank 0 is in" in err
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, "why", tmp_path / "empty")
    assert code == 1
    assert "is a folder without a trace" in err


def test_names_in_a_trace_are_no_control_sequences(capsys, tmp_path):
    path = tmp_path / "rank0.json"
    events = [{"ph": "X", "name": "\x1b[31maten::mm", "cat": "cpu_op", "ts": 0, "dur": 9, "pid": 0, "tid": 0}]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    _, out, _ = run(capsys, "why", path)
    assert "\x1b[31m" not in out


def test_the_traced_step_is_estimated_as_it_was_measured(capsys, tmp_path, plan):
    written = tmp_path / "here.json"
    code, out, err = run(capsys, "calibrate", "--from-trace", RANKS[0], "--from-trace", RANKS[1], "--plan", plan,
                         "--output", written)  # fmt: skip
    assert code == 0, err
    assert "flop_per_s[float32]" in out
    again = tmp_path / "again.json"
    code, _, err = run(capsys, "estimate", plan, "--calibration", written, "--json", again)
    assert code == 0, err
    ranks = median_step([step for path in RANKS for step in measured_steps(read_trace(Path(path)))[0]])
    measured_s = max(step.seconds for step in ranks)
    # What is left is waiting of a machine that did something else, too.
    assert json.loads(again.read_text())["iteration_time_s"] == pytest.approx(measured_s, rel=0.1)


def test_a_trace_is_calibrated_with_its_plan_only(capsys, tmp_path):
    code, _, err = run(capsys, "calibrate", "--from-trace", RANKS[0], "--output", tmp_path / "c.json")
    assert code == 2
    assert "--from-trace and --plan go together" in err


MEGATRON = """ [2026-01-02 03:04:05] iteration        {n}/     100 | consumed samples:         {n} | elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 9.1 | lm loss: 1.0E+01 |
[Rank 0] (after {n} iterations) memory (MB) | allocated: 10.0 | max allocated: 64.0 | reserved: 99.0
"""  # noqa: E501
TITAN = "\x1b[32m[titan] INFO - step: {n:2}  loss:  7.1  grad_norm:  1.2  memory:  0.50GiB(5%)  tps: {tps}  mfu: 1%\n"


def test_a_log_of_megatron_is_compared_with_the_plan(capsys, tmp_path, plan):
    log = tmp_path / "run.log"
    log.write_text("".join(MEGATRON.format(n=n, ms=ms) for n, ms in enumerate((9000, 8000, 40, 50, 60), 1)))
    code, out, err = run(capsys, "why", log, "--plan", plan)
    assert code == 0, err
    assert "50 ms, the median of 3 steps of megatron" in out
    assert "0.06 GiB at the peak" in out


def test_a_log_of_torchtitan_says_tokens_a_device(capsys, tmp_path, plan):
    log = tmp_path / "run.log"
    log.write_text("".join(TITAN.format(n=n, tps="1,280") for n in range(1, 4)))
    code, out, err = run(capsys, "why", log, "--plan", plan)
    assert code == 0, err
    assert "1280 tokens/s a device" in out
    assert "100 ms, the median of 3 steps of torchtitan" in out  # 4 samples of 64 tokens, by 2 devices


def test_a_log_without_steps_is_refused(capsys, tmp_path):
    log = tmp_path / "run.log"
    log.write_text("hello\n")
    code, _, err = run(capsys, "why", log)
    assert code == 1
    assert "has no step that Megatron-LM or torchtitan logs" in err
