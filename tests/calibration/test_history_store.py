"""The file of past runs: what is appended comes back, whoever writes at a time and whatever is killed meanwhile."""

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import sqlite3
import stat

import pytest

from alpa_dejavu.calibration.history import PastRun, StageSeconds, Store, corrected, default_path, history_path
from alpa_dejavu.problem import StepCorrection
from past_runs import ORIGIN, run_of
from plans import example_plan

_PROCESSES = multiprocessing.get_context("spawn")


def test_runs_come_back_in_their_order(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    assert store.runs() == ()
    stages = tuple(StageSeconds(0.1, 0.2, 0.01, 0.25, 0.3) for _ in range(2))
    runs = [
        run_of(when_s=2.5),
        dataclasses.replace(run_of(ratio=1.25), stages=stages),
        run_of(example_plan(model="", batch=None), model="another"),
        run_of(corrected(example_plan(), StepCorrection(1.5, 0.1, 3, 1))),
    ]
    assert [store.append(run) for run in runs] == [1, 2, 3, 4]
    assert store.runs() == tuple(runs)
    assert store.runs()[3].predicted_s == pytest.approx(0.25)
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps_s": ()}, "no step was measured"),
        ({"steps_s": (0.1, float("nan"))}, "steps_s is nan"),
        ({"predicted_s": 0.0}, "predicted_s is 0.0"),
        ({"stages": (StageSeconds(0.1, 0.2, 0.0, 0.3, 0.3),)}, "1 stages were measured, but the plan has 2"),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(run_of(), **changes)


def _append(path, name, count):
    store = Store(path)
    for n in range(count):
        store.append(run_of(example_plan(model=name), when_s=float(n)))


def test_several_programs_append_at_a_time(tmp_path):
    path = tmp_path / "history.sqlite"
    names = ["first", "second", "third"]
    writers = [_PROCESSES.Process(target=_append, args=(path, name, 6)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    runs = Store(path).runs()
    assert len(runs) == 18
    for name in names:
        assert [run.when_s for run in runs if run.plan.model == name] == [0, 1, 2, 3, 4, 5]


def _write_and_hang(path, ready):
    with Store(path).writing() as connection:
        # So small a cache puts what isn't committed into the file itself.
        connection.execute("PRAGMA cache_size = 1")
        for _ in range(200):
            connection.execute(
                "INSERT INTO runs SELECT NULL, batch, when_s, model, model_fingerprint, cluster, "
                "cluster_fingerprint, devices, predictor, num_micro_batches, schedule, plan, "
                "predicted_s, measured_s, num_steps, steps_s, stages, versions, calibration "
                "FROM runs LIMIT 1"
            )
        ready.set()
        signal.pause()


def test_what_was_not_committed_is_gone_when_its_program_is_killed(tmp_path):
    path = tmp_path / "history.sqlite"
    store = Store(path)
    store.append(run_of(when_s=1.0))
    before = path.stat().st_size
    ready = _PROCESSES.Event()
    writer = _PROCESSES.Process(target=_write_and_hang, args=(path, ready))
    writer.start()
    assert ready.wait(600)
    assert path.stat().st_size > before
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(600)
    assert [run.when_s for run in store.runs()] == [1.0]
    assert store.append(run_of(when_s=2.0)) == 2
    assert [run.when_s for run in store.runs()] == [1.0, 2.0]


def _broken(path):
    path.write_bytes(b"this isn't SQLite" * 100)


def _half(path):
    Store(path).append(run_of())
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def _of_another(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
    connection.close()


def _of_the_future(path):
    Store(path).append(run_of())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


def _changed_by(*statements):
    def made(path):
        Store(path).append(run_of())
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (_changed_by("DROP TABLE runs", f"CREATE VIEW runs AS {ENDLESS}"), "its runs are a view, but must be a table"),
        (_broken, "is no history, or a broken one"),
        (_half, "broken"),
        (_of_another, "another program's database"),
        (_of_the_future, "version 7; this release has 2"),
    ],
)
def test_a_file_that_is_no_history_is_named_and_left_alone(tmp_path, made, said):
    path = tmp_path / "history.sqlite"
    made(path)
    before = path.read_bytes()
    store = Store(path)
    for use in (store.runs, store.check, lambda: store.append(run_of())):
        with pytest.raises(ValueError, match=said) as caught:
            use()
        assert "history.sqlite" in str(caught.value)
        assert "give another file by --history" in str(caught.value)
    assert path.read_bytes() == before


def test_what_never_ends_in_a_history_is_given_up(tmp_path):
    path = tmp_path / "history.sqlite"
    _changed_by(f"CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT count(*) FROM ({ENDLESS}); END")(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is no history: it takes without an end; move it away"):
        Store(path).append(run_of())
    assert path.read_bytes() == before
    assert len(Store(path).runs()) == 1


def test_a_history_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    Store(tmp_path / "history.sqlite").append(run_of())
    monkeypatch.setenv("ALPA_DEJAVU_FILE_MIB", "0.001")
    with pytest.raises(ValueError, match=r"history\.sqlite is larger than .*; set ALPA_DEJAVU_FILE_MIB to more"):
        Store(tmp_path / "history.sqlite").runs()


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("steps_s", "[-1.0]", r"steps_s\[0\] is -1\.0, but must be seconds above 0"),
        ("steps_s", "[1e300]", r"steps_s\[0\] is 1e\+300, but must be seconds above 0, and at most"),
        ("stages", "[1]", r"stages\[0\] is 1, but must be an object"),
        ("stages", '[{"forward": 1}]', r"stages\[0\] lacks the key 'forward_s'"),
        ("plan", "[" * 900 + "]" * 900, "lists in lists more than 100 deep"),
        ("plan", "{}", "plan lacks the key 'version'"),
        ("when_s", 1e300, "when_s is 1e\\+300, but must be seconds since 1970"),
        ("versions", '{"jax": 4}', r"versions\.jax is 4, but must be text"),
        ("model_fingerprint", b"\xff", "model_fingerprint is .*, but must be text"),
    ],
)
def test_a_run_that_cannot_be_read_is_named(tmp_path, column, value, said):
    store = Store(tmp_path / "history.sqlite")
    store.append(run_of())
    store.append(run_of())
    with store.writing() as connection:
        connection.execute(f"UPDATE runs SET {column} = ? WHERE id = 2", (value,))
    with pytest.raises(ValueError, match=f"run 2 can't be read: {said}.*; delete that row"):
        store.runs()


def test_a_folder_that_is_not_there_or_in_the_files_place_is_named(tmp_path):
    with pytest.raises(ValueError, match="can't be used: unable to open"):
        Store(tmp_path).runs()
    store = Store(tmp_path / "nowhere" / "history.sqlite")
    for use in (store.check, lambda: store.append(run_of())):
        with pytest.raises(ValueError, match=r"there is no folder .*nowhere; make it first"):
            use()


def test_the_usual_file_is_in_the_users_data_and_made_when_needed(tmp_path, monkeypatch):
    monkeypatch.delenv("ALPA_DEJAVU_HISTORY", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert history_path() == default_path() == tmp_path / "data" / "alpa-dejavu" / "history.sqlite"
    store = Store(history_path())
    store.check()
    assert not default_path().parent.exists()
    assert store.append(run_of()) == 1
    monkeypatch.setenv("ALPA_DEJAVU_HISTORY", "from-environment")
    assert history_path() == pathlib.Path("from-environment")
    assert history_path("given") == pathlib.Path("given")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_path() == pathlib.Path.home() / ".local" / "share" / "alpa-dejavu" / "history.sqlite"


def _of_version_1(path):
    """As the release before wrote it: without the calibration."""
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE runs DROP COLUMN calibration")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def test_a_history_of_version_1_is_read_as_it_is_and_renewed_by_the_next_run(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    old = [run_of(when_s=1.0), run_of(when_s=2.0)]
    for run in old:
        store.append(run)
    _of_version_1(store.path)
    before = store.path.read_bytes()
    unknown = [dataclasses.replace(run, origin=dataclasses.replace(run.origin, calibration="unknown")) for run in old]
    store.path.chmod(stat.S_IRUSR)
    store.check()
    assert store.runs() == tuple(unknown)
    assert store.path.read_bytes() == before
    store.path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    new = run_of(when_s=3.0, calibration="v100 of 2024-05-31 (0123456789ab)")
    assert store.append(new) == 3
    assert store.runs() == (*unknown, new)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_run_that_cannot_be_appended_leaves_a_history_of_version_1(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    store.append(run_of())
    _of_version_1(store.path)

    def fails():
        with store.writing() as connection:
            connection.execute("DELETE FROM runs")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert "calibration" not in [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    connection.close()
    assert len(store.runs()) == 1


def test_a_run_knows_its_median_and_when_it_was():
    run = PastRun(example_plan(), ORIGIN, 0.25, (0.5, 0.3, 0.4))
    assert (run.measured_s, run.ratio) == (0.4, 1.6)
    assert run.when_s > 0
    assert "jax" in run.versions
    many = PastRun(example_plan(), ORIGIN, 0.25, (9.0,) + (1.0,) * 1000)
    assert set(many.steps_s) == {1.0}


def test_an_empty_file_is_a_history_without_runs(tmp_path):
    path = tmp_path / "history.sqlite"
    path.touch()
    assert Store(path).runs() == ()
    assert Store(path).append(run_of()) == 1


def test_a_file_that_may_only_be_read_is_read(tmp_path):
    store = Store(tmp_path / "history.sqlite")
    store.append(run_of())
    store.path.chmod(stat.S_IRUSR)
    assert len(store.runs()) == 1
