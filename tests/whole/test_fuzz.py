"""Broken files end as they should, a few of each kind; and the benchmark that tries more of them sees what doesn't."""

import json
import math
import pathlib
import re

import pytest
from hypothesis import strategies as st

import fuzz
from alpa_dejavu.plans.plan_file import plan_data
from fuzzing import _draw
from fuzzing._breaks import broken_json, json_bytes
from fuzzing._example import Example, Placed
from fuzzing._figures import contradictions_in
from fuzzing._formats import FORMATS
from fuzzing._outcome import Ended, Limits, Watch, tally
from fuzzing._read import READERS
from fuzzing._right import right_files
from fuzzing._runs import as_command, in_process, interrupted, outcome_of
from plans import example_plan

# Nothing here depends on how fast the machine is: ten minutes guard against hanging alone.
PATIENT = Limits(600.0, math.inf)

READ = "reading "
"""Kinds that are read, without what a command does then, begin so: hundreds of them are tried."""
LEFT_OUT = ("sizes",)
"""Kinds that aren't tried here: large numbers of hosts, layers and micro-batches take minutes."""


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return right_files(tmp_path_factory.mktemp("right"))


def smaller(examples):
    """Without files that take gibibytes of the memory and of the time."""
    endless = (b"/dev/zero", b"/dev/full")
    return examples.filter(lambda one: not any(f.sort == "sparse" or f.content in endless for f in one.files))


def patiently(example, folder):
    return interrupted(example, folder, PATIENT.seconds)


def failures(outcomes):
    here = pathlib.Path()
    return [f"{one.example.shown(here)}: {sort}\n{one.ended.stderr}" for sort, (one, *_) in tally(outcomes).items()]


def test_broken_files_and_flags_end_as_they_should(right):
    kinds = {
        name: made for name, made in _draw.kinds(right).items() if name not in LEFT_OUT and not name.startswith(READ)
    }
    outcomes = []
    for number, (name, count) in enumerate(_draw.shares(kinds, 60).items()):
        outcomes += _draw.drawn(
            smaller(kinds[name]), count, number, lambda example: outcome_of(example, patiently, PATIENT)
        )
    assert not failures(outcomes)
    assert {outcome.example.kind for outcome in outcomes} == set(kinds)
    assert len({outcome.example for outcome in outcomes}) > 40


def test_hundreds_of_broken_files_are_read_or_refused_and_contradict_themselves_in_none(right):
    kinds = {name: made for name, made in _draw.kinds(right).items() if name.startswith(READ)}
    outcomes = []
    for number, (name, count) in enumerate(_draw.shares(kinds, 300).items()):
        outcomes += _draw.drawn(
            smaller(kinds[name]), count, number, lambda example: outcome_of(example, patiently, PATIENT)
        )
    assert not failures(outcomes)
    assert {outcome.example.arguments[1] for outcome in outcomes} == set(READERS)
    assert len({outcome.example for outcome in outcomes}) > 200
    assert any(outcome.ended.code == 0 for outcome in outcomes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lower_bound_s": 1.0}, "the lower bound is above the step"),
        ({"iteration_time_s": 1e-9, "lower_bound_s": 0.0}, "the step is shorter than a stage's micro-batches"),
        ({"collective_s": 5.0}, "collectives take longer than their stage"),
        ({"compute_s": 5.0}, "computing takes longer than its stage"),
        ({"synchronisation_s": 5.0}, "synchronising takes longer than all that happens once a step"),
        ({"memory_bytes": 8e-6}, "a stage keeps more than its memory's peak"),
    ],
)
def test_figures_that_contradict_one_another_are_seen(tmp_path, change, said):
    data = plan_data(example_plan())
    for key, value in change.items():
        (data if key in data else data["stages"][0])[key] = value
    (tmp_path / "in.json").write_text(json.dumps(data))
    (found,) = dict.fromkeys(contradictions_in(tmp_path / "in.json"))
    assert found == said
    example = Example("reading plan", ("file", "plan", "in.json"), accepts="in.json")
    outcome = Watch(tmp_path).outcome(example, ended(), Limits())
    assert outcome.faults == (f"accepted, but {said}",)
    assert not Watch(tmp_path).outcome(example, ended(1, stderr="Error: no"), Limits()).faults


def test_so_do_commands(right):
    kinds = _draw.kinds(right)
    mixed = smaller(st.one_of(*(kinds[name] for name in ("plan", "cluster", "history", "result"))))
    outcomes = _draw.drawn(
        mixed, 4, 1, lambda example: outcome_of(example, lambda one, folder: as_command(one, folder, PATIENT), PATIENT)
    )
    assert not failures(outcomes)


def test_right_files_are_read(right, tmp_path):
    for form in FORMATS:
        for place, command in enumerate(form.commands):
            folder = tmp_path / form.name / str(place)
            folder.mkdir(parents=True)
            files = tuple(Placed(name, content) for name, content in right.items())
            example = Example(form.name, command, files, (), form.environment, form.reader)
            example.place(folder)
            ended = in_process(example, folder)
            # A model that is somebody's code, and that the plan's file alone names, may have to be named again.
            named = ended.code == 1 and "--model" not in command and "--model" in ended.stderr
            assert named or (ended.code, "Error" in ended.stderr) == (0, False), (command, ended.stderr)


def test_files_are_broken_in_many_ways():
    before = {"a": [1, 2.5, {"b": "text"}], "c": {"d": None, "e": 3}}
    found = []
    _draw.drawn(broken_json(json.dumps(before).encode()), 600, 1, found.append)
    texts = [each.decode("utf-8", "replace") for each in found]
    assert len(set(found)) > 100
    for part in ("NaN", "Infinity", "1e+308", str(2**60), "[" * 900, r"\u001b", "名前", "trap:run", "null"):
        assert any(part in text for text in texts), part
    assert any(each.startswith(b"\xef\xbb\xbf") for each in found), "a mark of the encoding"
    assert any(re.search(r'"(a|c)":(?s:.*)"\1":', text) for text in texts), "a key that is there twice"
    assert not any("\x01" in text or r"\u0001" in text for text in texts), "no mark is left"
    assert json_bytes({"a": "\x01deep:3", "\x01twice:a": 1}, True, "utf-8") == b'{\n "a": [[[]]],\n "a": 1\n}'


def ended(code=0, stdout="", stderr="", seconds=0.1, memory_bytes=1.0, stopped=False):
    return Ended(code, stdout, stderr, seconds, memory_bytes, stopped=stopped)


def faults(example, how, folder, before=lambda folder: None, after=lambda folder: None):
    """What is said to be wrong with an example that ended so, and left the files that `after` makes."""
    (folder / "in.json").write_text("{}")
    before(folder)
    watch = Watch(folder)
    after(folder)
    return watch.outcome(example, how, Limits(20.0, 2.0**31)).faults


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (ended(4), ("exit status 4",)),
        (ended(-11, stderr="x"), ("exit status -11",)),
        (ended(130, stderr="Aborted!"), ("exit status 130 without an interrupt",)),
        (ended(1, stderr="Traceback (most recent call last):\nKeyError: 1"), ("traceback",)),
        (ended(1), ("no word on stderr",)),
        (ended(0, "a \x1b[31mname"), ("control characters on the terminal",)),
        (ended(0, seconds=21.0), ("over 20 s",)),
        (ended(0, stderr="this takes about 40 seconds", seconds=21.0), ()),
        (ended(0, memory_bytes=2.0**32), ("over 2.00 GiB",)),
        (ended(None), ("had to be ended",)),
        (ended(130, stderr="Aborted!", seconds=41.0, stopped=True), ("had to be ended",)),
        (ended(130, stderr="this takes about 5 minutes\nAborted!", seconds=41.0, stopped=True), ()),
        (ended(0, "a table\n\tof all"), ()),
        (ended(2, stderr="Usage: "), ()),
    ],
)
def test_what_is_wrong_with_an_end_is_said(how, said, tmp_path):
    assert faults(Example("plan", ("estimate", "in.json")), how, tmp_path) == said


@pytest.fixture
def here(monkeypatch):
    """Examples run in this process, and every third one ends with 4."""

    class Here:
        def __init__(self, limits):
            self.count = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, example, folder):
            self.count += 1
            return ended(4, stderr="no") if self.count % 3 == 0 else in_process(example, folder)

    monkeypatch.setattr(fuzz, "Worker", Here)


def test_failures_are_told_laid_out_and_written(here, tmp_path, capsys):
    out, keep = tmp_path / "out.json", tmp_path / "keep"
    given = ["--examples", "6", "--commands", "0", "--only", "database", "--json", str(out), "--keep", str(keep)]
    assert fuzz.main(given) == 1
    written = json.loads(out.read_text())
    assert written["kinds"]["database"]["examples"] == 6
    (failure,) = [one for one in written["failures"] if "exit status 4" in one["faults"]]
    assert failure["count"] == 2
    for line in failure["again"]:
        found = re.fullmatch(r"cd (\S+) && alpa-dejavu calibration show database\.json.*", line)
        assert {"database.json", "trap.py", "failure.txt", "plan.json"} <= set(map(str, _names(found[1])))
    assert "2 x 'exit status 0: no'" in capsys.readouterr().out


def _names(folder):
    return (path.name for path in pathlib.Path(folder).iterdir())
