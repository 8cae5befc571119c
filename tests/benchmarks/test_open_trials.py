import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import open_trials
from trials import _score
from trials._folder import AbsentError, Folder, UnreadableError, measured
from trials._run import score
from trials._sets import SETS
from trials._trial_set import MEASURED_S, Context, Predicted, TrialSet, labels

INTRA = "alpa-p3.16xlarge/collectives:intra_host"
FIGURES = {
    *("n", "groups", "mape", "median_ape", "p90_ape", "bias", "coverage_90", "width_90", "interval_score"),
    *("by_group", "fit_s", "predict_us_per_row"),
}


def _collectives(folder: Path, meshes: tuple[int, ...] = (2, 4, 8), factor: float = 1.0) -> Path:
    lines = ["mesh,collective,replica_groups,num_groups,group_size,dtype,num_elements,time_s,filled_in"]
    for size in meshes:
        group = json.dumps([list(range(size))])
        for name in ("all_gather", "all_reduce"):
            for power in range(14, 27):
                seconds = factor * (1e-5 * size + 4.0 * 2**power * (size - 1) / size / 1e11)
                lines.append(f'1x{size},{name},"{group}",1,{size},f32,{2**power},{seconds},0')
    path = folder / "alpa-p3.16xlarge" / "collectives.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_leaves_groups_out_and_lists_absent_sets(tmp_path: Path) -> None:
    _collectives(tmp_path / "train")
    out = tmp_path / "out" / "board.json"
    plots = tmp_path / "plots"
    given = ["--train", str(tmp_path / "train"), "--json", str(out), "--plots", str(plots)]
    assert open_trials.main(given) == 0
    result = json.loads(out.read_text())
    assert result["version"] == 1
    assert set(result["sets"]) == {INTRA}
    assert set(result["sets"]) | set(result["absent"]) == set(SETS)
    figures = result["sets"][INTRA]
    assert set(figures) >= FIGURES | {"baselines"}
    assert (figures["n"], figures["groups"]) == (78, 3)
    assert set(figures["by_group"]) == {"mesh=1x2", "mesh=1x4", "mesh=1x8"}
    assert set(figures["baselines"]) == {"roofline", "linear", "svm", "random_forest", "bsp"}
    assert all(set(each) >= FIGURES for each in figures["baselines"].values())
    assert result["coverage_pooled"] == figures["coverage_90"]
    assert (plots / "alpa-p3.16xlarge-collectives-intra_host.html").exists()


def test_only_rows_that_are_not_in_train_are_scored(tmp_path: Path) -> None:
    _collectives(tmp_path / "train")
    _collectives(tmp_path / "test", (4,), 1.01)
    _collectives(tmp_path / "again")
    arguments = (SETS[INTRA], SETS, Folder(tmp_path / "train"))
    scored = score(*arguments, Folder(tmp_path / "test"))
    assert scored is not None
    assert scored.result["n"] == 26
    assert scored.result["mape"] < 0.1
    assert score(*arguments, Folder(tmp_path / "again")) is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",65536,", ",many,", "num_elements is 'many'"),
        ("num_elements", "elements", "lacks the columns"),
        (",f32,", ",q7,", "no dtype 'q7'"),
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


def test_times_that_are_not_positive_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({"time_s": [1.0, -1.0, np.nan, 2.0]})
    assert measured(rows, ["time_s"], "profile.csv")["time_s"].tolist() == [1.0, 2.0]
    assert "profile.csv: 1 rows have no positive time (row 1" in caplog.text


class _Spy:
    """Predicts a second, and remembers which rows it was fitted on and asked for."""

    fitted: list[set[str]] = []  # noqa: RUF012
    asked: list[pd.DataFrame] = []  # noqa: RUF012

    def fit(self, rows: pd.DataFrame, context: Context) -> "_Spy":
        self.fitted.append(set(rows["job"]))
        with pytest.raises(ValueError, match="is being predicted"):
            context.rows("spied")
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        self.asked.append(rows)
        one = np.ones(len(rows))
        return Predicted(one, 0.5 * one, 2 * one)


def test_a_predictor_sees_neither_the_group_nor_its_measurements(tmp_path: Path) -> None:
    rows = pd.DataFrame({"job": list("aabbcc"), MEASURED_S: [1.0, 2, 3, 1, 2, 4]})

    def features(given: pd.DataFrame, context: Context) -> pd.DataFrame:
        return pd.DataFrame({"compute_s": np.ones(len(given)), "traffic_s": np.ones(len(given))})

    spied = TrialSet("spied", lambda folder: rows, labels("job"), _Spy, features, job=labels("job"))
    scored = score(spied, {"spied": spied}, Folder(tmp_path), None)
    assert scored is not None
    assert sorted(map(sorted, _Spy.fitted)) == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert all(MEASURED_S not in each for each in _Spy.asked)
    assert scored.result["coverage_90"] == 4 / 6
    assert scored.result["jobs"] == 3


def test_figures_are_fractions_of_what_was_measured() -> None:
    truth = np.array([1.0, 2.0, 4.0])
    predicted = Predicted(np.array([1.1, 1.8, 4.0]), np.array([0.9, 1.0, 4.5]), np.array([1.1, 3.0, 5.5]))
    found = _score.figures(truth, predicted, pd.Series(["x", "x", "y"]))
    assert found["mape"] == pytest.approx(0.2 / 3)
    assert found["bias"] == pytest.approx(0.0, abs=1e-12)
    assert found["coverage_90"] == pytest.approx(2 / 3)
    assert found["width_90"] == pytest.approx(0.25)
    assert found["by_group"] == pytest.approx({"x": 0.1, "y": 0.0})
    assert _score.interval_scores(truth, predicted)[2] == pytest.approx((1 + 20 * 0.5) / 4)


def test_ranking_by_the_truth_regrets_nothing_and_by_its_opposite_most() -> None:
    truth = np.array([3.0, 1.0, 2.0, 5.0])
    jobs = pd.Series(["one"] * 4)
    best = _score.ranking_figures(truth, truth * 7, jobs)
    assert (best["spearman"], best["subset_regret"], best["top1_regret"]) == (pytest.approx(1.0), 0.0, 0.0)
    worst = _score.ranking_figures(truth, -truth, jobs)
    assert worst["spearman"] == pytest.approx(-1.0)
    assert worst["top1_regret"] == 4.0
    assert 0 < worst["subset_regret"] < 4.0
    assert _score.ranking_figures(truth, np.ones(4), jobs)["spearman"] is None
