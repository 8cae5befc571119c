"""What comes in a file is never imported or called, unless who gives the file says so."""

import copy
import dataclasses
import json
import sys

import pytest
from click.testing import CliRunner

from alpa_dejavu import layers
from alpa_dejavu.calibration import write_calibration
from alpa_dejavu.calibration.history import Store
from alpa_dejavu.cli import main
from alpa_dejavu.clusters import named_cluster, write_cluster
from alpa_dejavu.layers import _resolve, trusted_model
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.changed.kept import Kept, kept_path, write_with_kept
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.search.models.model_cache import packed_json, unpacked_json
from alpa_dejavu.plans.plan_file import plan_data, write_plan
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.testing import example_cluster
from made_up import fitted
from models import chain
from past_runs import run_of
from plans import example_plan, whole_plan

EVIL = "evil:run"
CLUSTER, MODEL = example_cluster(1), chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A folder in which a module lies in wait; the names of the model functions that were looked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef run(batch): raise LookupError('it ran')\n")
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    asked, known = [], _resolve._import

    def importing(module, function):
        asked.append(function)
        return known(module, function)

    monkeypatch.setattr(_resolve, "_import", importing)
    yield asked
    sys.modules.pop("evil", None)


def command(*words):
    return CliRunner().invoke(main.main, [str(word) for word in words])


def places(data, where=()):
    """Where in JSON data there is text."""
    if isinstance(data, str):
        yield where
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*where, key))


def with_evil(data, where):
    """The data with that name in one place."""
    made = copy.deepcopy(data)
    inner = made
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = EVIL
    return made


def planned():
    config = MeshConfig((2, 1), 2, 1, {"force_batch_dim_to_mesh_dim": 0})
    stages = [GivenStage(first, first + 1, Submesh(1, 2), config) for first in (0, 2)]
    return estimate(MODEL, CLUSTER, Run(4), stages, name=EVIL, batch=32)


@pytest.fixture
def files(tmp_path):
    """Each kind of file that there is, with the module's name in it."""
    plan = tmp_path / "plan.json"
    write_with_kept(planned().plan, Kept.of(planned()), plan)
    twice = dataclasses.replace(planned().plan, num_micro_batches=8, step_s=2 * planned().plan.step_s)
    other = write_plan(twice, tmp_path / "other.json")
    history = Store(tmp_path / "runs.sqlite")
    history.append(run_of(example_plan(model=EVIL)))
    calibration = tmp_path / "calibration.json"
    write_calibration(dataclasses.replace(fitted(), name=EVIL, origin=EVIL), calibration)
    cluster = tmp_path / "cluster.json"
    write_cluster(dataclasses.replace(named_cluster("p3.16xlarge"), name=EVIL), cluster)
    (tmp_path / "database.pkl").write_bytes(b"cevil\nrun\n(I1\ntR.")
    database = {"version": 1, "kind": "alpa-profiling-database", "origin": EVIL}
    (tmp_path / "database.json").write_text(json.dumps(database))
    (tmp_path / "scenario.yaml").write_text(f"version: 1\nproblem: {EVIL}\nhook: !!python/name:{EVIL}\n")
    (tmp_path / "runs.json").write_text(json.dumps({"version": 1, "scenario": EVIL, "problem": EVIL, "runs": [EVIL]}))
    event = {"ph": "X", "name": EVIL, "cat": "cpu_op", "ts": 0, "dur": 5, "args": {"Input Dims": [EVIL]}}
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    return {
        "trace": tmp_path / "trace.json",
        "scenario": tmp_path / "scenario.yaml", "runs": tmp_path / "runs.json",
        "plan": plan, "other": other, "history": history.path, "calibration": calibration, "cluster": cluster,
        "pickle": tmp_path / "database.pkl", "database": tmp_path / "database.json", "output": tmp_path / "output.json",
        "folder": tmp_path / "folder",
    }  # fmt: skip


COMMANDS = [
    "plan --model nobody --batch 8 --cluster {cluster} --history {history} --calibration {calibration}",
    "replan {plan} --without host-0 --calibration {calibration}",
    "replan {plan} --slow host-0=2",
    "replan {plan} --cluster {cluster}",
    "estimate {plan}",
    "estimate {plan} --cluster {cluster} --calibration {calibration}",
    "explain {plan}",
    "explain {plan} --calibration {calibration}",
    "diff {plan} {other}",
    "diff {plan} {other} --cluster {cluster}",
    "export {plan} --to alpa --output {folder}",
    "import {database} --from galvatron --cluster {cluster}",
    "import {plan} --from deepspeed --cluster {cluster}",
    "import {scenario} --from megatron --cluster {cluster} --model {database}",
    "profile {plan} --history {history} --calibration {calibration}",
    "history --history {history}",
    "calibrate --output {output} --machine {cluster} --database {database}",
    "calibrate --output {output} --from-trace {trace} --plan {plan}",
    "why {trace} --plan {plan}",
    "calibration show {calibration}",
    "calibration show {database}",
    "calibration convert {pickle} --output {output}",
    "resilience nobody --plan {plan}",
    "spend --model nobody --cluster {cluster} --seconds 1 --calibration {calibration}",
    "compare --model nobody --cluster {cluster} --cluster p3.8xlarge --batch 8 --calibration {calibration}",
    "playground run {scenario}",
    "playground compare {runs} {scenario}",
]
"""All that read files. `calibrate` stops at its database, which isn't whole."""


def test_all_commands_are_walked_through():
    without = {"doctor", "install-alpa", "models", "machines"}
    assert {line.split()[0] for line in COMMANDS} == set(main.main.commands) - without


@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_runs_what_a_file_names(line, files, imported, tmp_path):
    result = command(*line.format(**files).split())
    assert imported == []
    assert not (tmp_path / "ran").exists()
    assert result.exit_code in (0, 1)
    assert "Traceback" not in result.output
    if line.startswith(("estimate", "diff", "profile")):
        assert "model is 'evil:run' in the plan's file" in result.stderr


def test_wherever_the_name_is_in_a_plan_or_beside_it(files, imported):
    plan = plan_data(whole_plan())
    for where in places(plan):
        files["plan"].write_text(json.dumps(with_evil(plan, where)))
        for line in ("explain {plan}", "estimate {plan} --model nobody"):
            command(*line.format(**files).split())
    write_plan(planned().plan, files["plan"])
    kept = unpacked_json(kept_path(files["plan"]).read_bytes())
    for where in places({**kept, "model": None, "sharding": None}):
        kept_path(files["plan"]).write_bytes(packed_json(with_evil(kept, where)))
        command("replan", files["plan"], "--slow", "host-0=2")
    assert imported == []


def test_who_names_the_function_or_trusts_the_file_runs_it(files, imported):
    ran = []
    for more in (["--model", EVIL], ["--trust-model"]):
        for words in (["estimate", files["plan"]], ["diff", files["plan"], files["other"]]):
            ran.append(command(*words, *more, "--cluster", "p3.16xlarge"))
    assert imported == [EVIL] * 4
    assert all("LookupError: it ran" in result.stderr for result in ran)


def test_in_python_the_rule_is_the_same(imported, monkeypatch):
    plan = planned().plan
    with pytest.raises(ValueError, match=r"model is 'evil:run' in the plan's file, .* give it by --model, or trust"):
        PlanEstimator(plan, cluster=CLUSTER)
    monkeypatch.setattr(layers, "trace", lambda model, *, batch: pytest.fail("it is traced when it is estimated"))
    PlanEstimator(plan, cluster=CLUSTER, trust_model=True)
    assert trusted_model(plan, trust_model=True) == trusted_model(plan, EVIL) == EVIL
    assert trusted_model(example_plan()) == "gpt-125m"
    assert imported == []
