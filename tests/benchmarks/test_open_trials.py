import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import open_trials
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import Group, Nccl
from trials import _score
from trials._folder import AbsentError, Folder, UnreadableError, measured
from trials._run import score
from trials._sets import SETS
from trials._trial_set import MEASURED_S, Predicted, TrialSet, labels

INTRA = "alpa-p3.16xlarge/collectives:intra_host"
FIGURES = {"fitted_to_them", "n", "mape", "median_ape", "bias", "coverage_90", "width_90"}


def _collectives(folder: Path, meshes: tuple[int, ...] = (2, 4, 8), factor: float = 1.0) -> Path:
    lines = ["mesh,collective,replica_groups,num_groups,group_size,dtype,num_elements,time_s,filled_in"]
    for size in meshes:
        group = json.dumps([list(range(size))])
        for name in ("all_gather", "all_reduce"):
            for power in range(14, 27):
                cluster = named_cluster("p3.16xlarge", 1)
                predicted_s = Nccl.under_alpa().seconds(name, 4.0 * 2**power, Group(cluster, (0,) * size))
                seconds = factor * float(predicted_s)
                lines.append(f'1x{size},{name},"{group}",1,{size},f32,{2**power},{seconds},0')
    path = folder / "alpa-p3.16xlarge" / "collectives.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_sets_are_scored_and_absent_ones_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _collectives(tmp_path / "train", factor=1.25)
    out, plots = tmp_path / "out" / "board.json", tmp_path / "plots"
    given = ["--train", str(tmp_path / "train"), "--json", str(out), "--plots", str(plots)]
    assert open_trials.main(given) == 0
    result = json.loads(out.read_text())
    assert result["version"] == 2
    assert set(result["sets"]) == {INTRA}
    assert set(result["sets"]) | set(result["absent"]) == set(SETS)
    figures = result["sets"][INTRA]
    assert set(figures) == FIGURES
    assert figures["fitted_to_them"]
    assert figures["n"] == 78
    assert (figures["mape"], figures["bias"]) == (pytest.approx(0.2), pytest.approx(-0.2))
    assert "absent: vtrain-a100/single_node" in " ".join(capsys.readouterr().out.split())
    assert (plots / "alpa-p3.16xlarge-collectives-intra_host.html").exists()


def test_only_rows_that_are_not_in_train_are_scored(tmp_path: Path) -> None:
    _collectives(tmp_path / "train")
    _collectives(tmp_path / "test", (4,), 1.01)
    _collectives(tmp_path / "again")
    scored = score(SETS[INTRA], Folder(tmp_path / "train"), Folder(tmp_path / "test"))
    assert scored is not None
    assert scored.result["n"] == 26
    assert not scored.result["fitted_to_them"]
    assert scored.result["mape"] == pytest.approx(1 - 1 / 1.01)
    assert score(SETS[INTRA], Folder(tmp_path / "train"), Folder(tmp_path / "again")) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",65536,", ",many,", "num_elements is 'many'"),
        ("num_elements", "elements", "lacks the columns"),
        (",f32,", ",q7,", "line 2: dtype is 'q7', but must be one of f16"),
        ("time_s", "time_ms", "time_ms is in another unit: convert it to time_s"),
        (",131072,", ",-4,", "line 5: num_elements is -4.0, but must be a number of at least 0"),
        (",131072,", ",inf,", "line 5: num_elements is 'inf', but must be a finite number"),
        ("1x4,", "four,", "line 28: mesh is 'four', but must be hosts x devices per host"),
        ("[0, 1, 2, 3]", "[0, 1, 2, 4]", "line 28: device 4 isn't in the mesh 1x4, which has 0 to 3"),
        ("[0, 1, 2, 3]", "[0, 1, 2]", "but must be 1 groups of 4 devices, each once"),
        ("[[0, 1, 2, 3]]", "all", "replica_groups is 'all', but must be lists of devices"),
        ("all_reduce", "broadcast", "collective is 'broadcast', but must be one of all_gather"),
        (",1,8,", ",1,,", "group_size is '', but must be a number of at least 1"),
        ("all_reduce", "", "collective is '', but must not be empty"),
        (",f32,131072,", ",f32,131072,1,2,3,", "is no table"),
    ],
)
def test_an_unreadable_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = _collectives(tmp_path / "train")
    path.write_text(path.read_text().replace(old, new))
    given = ["--train", str(tmp_path / "train"), "--json", str(tmp_path / "out.json")]
    assert open_trials.main(given) == 2
    message = capsys.readouterr().err
    assert "collectives" in message
    assert said in message
    assert not (tmp_path / "out.json").exists()


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text("{")
    with pytest.raises(UnreadableError, match=r"gpus\.json: is no JSON"):
        Folder(tmp_path).document("gpus.json")
    with pytest.raises(AbsentError, match=r"none\.json"):
        Folder(tmp_path).document("none.json")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--only", "amp/het_model_trials"], "amp/het_model_trials has no rows to score"),
        (["--only", "nothing"], "there is no set 'nothing'"),
        (["--test", "nowhere"], "nowhere is no folder"),
    ],
)
def test_what_cannot_be_scored_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    _collectives(tmp_path / "train")
    given = ["--train", str(tmp_path / "train"), "--json", str(tmp_path / "out.json"), *more]
    assert open_trials.main(given) == 2
    assert said in capsys.readouterr().err


def test_what_is_there_twice_is_named_with_both_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _collectives(tmp_path / "train")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[4]]) + "\n")
    assert len(SETS[INTRA].load(Folder(tmp_path / "train"))) == 79
    assert f"collectives.csv, line {len(lines) + 1}: the same as collectives.csv, line 5 (1 such lines)" in caplog.text


def test_a_time_that_is_not_positive_is_named_with_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _collectives(tmp_path / "train")
    lines = path.read_text().splitlines()
    fields = lines[6].split(",")
    lines[6] = ",".join([*fields[:-2], "-0.5", fields[-1]])
    path.write_text("\n".join(lines) + "\n")
    assert len(SETS[INTRA].load(Folder(tmp_path / "train"))) == 77
    assert "1 rows have no positive time (collectives.csv, line 7: {'time_s': -0.5}) and are left out" in caplog.text


PLAN = {
    "pipeline_list": [
        {
            "layers_per_stage": [list(range(26))],
            "tmp_per_stage": [[[[["GH-96", 4, "zone"]], 4]]],
        }
    ],
    "mbs": 4, "gbs": 64, "real": 2.5, "max_mem": 1e10, "N": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"real": -1}, "plan 1: real is -1, but must be a finite number of at least 0"),
        ({"real": float("inf")}, "plan 1: real is inf"),
        ({"real": "fast"}, "plan 1: lacks what a plan has"),
        ({"max_mem": -5}, "plan 1: max_mem is -5"),
        ({"mbs": 0}, "plan 1: mbs is 0, but must be a number of at least 1"),
        ({"N": float("nan")}, "plan 1: N is nan"),
        ({"pipeline_list": []}, "plan 1: lacks what a plan has"),
        (
            {"pipeline_list": [{**PLAN["pipeline_list"][0], "tmp_per_stage": [[[[["B-200", 4, "zone"]], 4]]]}]},  # type: ignore[index]
            "plan 1: GPU 'B-200' isn't among those that were profiled",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    (tmp_path / "sailor").mkdir()
    (tmp_path / "sailor" / "clariden_plans.json").write_text(json.dumps([PLAN, PLAN | change]))
    with pytest.raises(UnreadableError, match=r"clariden_plans\.json: plan 1: ") as error:
        SETS["sailor/clariden_plans"].load(Folder(tmp_path))
    assert said in str(error.value)


def test_a_plan_that_was_not_measured_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sailor").mkdir()
    path = tmp_path / "sailor" / "clariden_plans.json"
    path.write_text(json.dumps([PLAN, PLAN | {"real": float("nan")}, PLAN | {"max_mem": None}]))
    rows = SETS["sailor/clariden_plans"].load(Folder(tmp_path))
    assert rows["measured_bytes"].isna().tolist() == [False, True]
    assert "plan 1: real, the seconds of an iteration, is NaN" in caplog.text
    path.write_text('[{"mbs": 1, "mbs": 2}]')
    with pytest.raises(UnreadableError, match="the key 'mbs' is there twice"):
        SETS["sailor/clariden_plans"].load(Folder(tmp_path))


def test_times_that_are_not_positive_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({"time_s": [1.0, -1.0, np.nan, 2.0]})
    assert measured(rows, ["time_s"], "profile.csv")["time_s"].tolist() == [1.0, 2.0]
    assert "profile.csv: 1 rows have no positive time (row 1" in caplog.text


def test_a_prediction_sees_no_measurement(tmp_path: Path) -> None:
    rows = pd.DataFrame({"job": list("aabbcc"), MEASURED_S: [1.0, 2, 3, 1, 2, 4]})
    asked = []

    def predict(given: pd.DataFrame, folder: Folder) -> Predicted:
        asked.append(given)
        one = np.ones(len(given))
        return Predicted(one, 0.5 * one, 2 * one)

    spied = TrialSet("spied", lambda folder: rows, predict, labels("job"))
    scored = score(spied, Folder(tmp_path), None)
    assert scored is not None
    assert [list(each) for each in asked] == [["job"]]
    assert scored.result["coverage_90"] == 4 / 6
    assert scored.result["jobs"] == 3
    nothing = TrialSet("none", lambda folder: rows, lambda given, folder: Predicted.of([(0.0, 0.0, 0.0)] * len(given)))
    with pytest.raises(ValueError, match="none: predictions aren't all finite and above zero"):
        score(nothing, Folder(tmp_path), None)


def test_figures_are_fractions_of_what_was_measured() -> None:
    truth = np.array([1.0, 2.0, 4.0])
    predicted = Predicted(np.array([1.1, 1.8, 4.0]), np.array([0.9, 1.0, 4.5]), np.array([1.1, 3.0, 5.5]))
    found = _score.figures(truth, predicted)
    assert found["mape"] == pytest.approx(0.2 / 3)
    assert found["bias"] == pytest.approx(0.0, abs=1e-12)
    assert found["coverage_90"] == pytest.approx(2 / 3)
    assert found["width_90"] == pytest.approx(0.25)
    peaks = _score.memory_figures(np.array([1.0, np.nan, 4.0]), np.array([1.1, 5.0, 2.0]))
    assert peaks == {"memory_mape": pytest.approx(0.3), "memory_bias": pytest.approx(-0.2)}
    assert _score.memory_figures(np.array([np.nan]), np.array([5.0])) == {}


def test_ranking_by_the_truth_regrets_nothing_and_by_its_opposite_most() -> None:
    truth = np.array([3.0, 1.0, 2.0, 5.0, 9.0])
    jobs = pd.Series(["one"] * 4 + ["another"])
    best = _score.ranking_figures(truth, truth * 7, jobs)
    assert best == {"spearman": pytest.approx(1.0), "regret": 0.0, "jobs": 1}
    worst = _score.ranking_figures(truth, -truth, jobs)
    assert (worst["spearman"], worst["regret"]) == (pytest.approx(-1.0), 4.0)
    assert _score.ranking_figures(truth, np.ones(5), jobs)["spearman"] is None
