"""Splits: who gets which samples, against counts by hand and by brute force; sizes, labels, and what can't be."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.data import SPLITS, Shards, Split, SplitTask, move, split
from alpa_dejavu.playground.testing import check_split
from alpa_dejavu.testing import example_cluster
from scenario_texts import check_refused, read

CASES = [
    *(split(name) for name in SPLITS if name != "moved-points"),
    *(split(name, by_speed=True) for name in ("independent", "sorted")),
    split("by-label", labels=2, groups="similar"),
    split("by-label", labels=3, group=4),
    split("dirichlet", alpha=0.3, definition="workers-over-labels"),
    split("dirichlet", alpha=100.0, least=5),
    split("clusters", clusters=9),
    split("moved-points", base=split("by-label"), share=0.3),
    split("moved-points", base=split("dirichlet"), step=0.5, dimensions=3),
]


def task(targets, workers=4, seed=0, inputs=None, hosts=None, compute_s=None):
    inputs = np.random.default_rng(1).random((len(targets), 2)).astype(np.float32) if inputs is None else inputs
    return SplitTask(inputs, np.asarray(targets), hosts or tuple(range(workers)), compute_s or (1.0,) * workers, seed)


def labels_of_workers(shards, targets):
    return [sorted(set(np.asarray(targets)[rows].tolist())) for rows in shards.rows]


@pytest.mark.parametrize("one", CASES, ids=repr)
def test_splits_keep_the_contract(one):
    check_split(one)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda size: [np.arange(size), *[np.zeros(0, np.int64)] * 5], "worker 1 has no sample"),
        (lambda size: [np.arange(size)] * 6, "sample 0 is there twice"),
        (lambda size: np.array_split(np.arange(1, size), 6), "sample 0 isn't there"),
        (lambda size: [np.arange(size)], "shares are for 1 workers, but must be for 6"),
        (lambda size: np.array_split(np.arange(size) + 1, 6), "an index is 240, but there are 240 samples"),
        (lambda size: np.array_split(np.random.default_rng().permutation(size), 6), "made again, it is another"),
    ],
)
def test_the_suite_finds_what_is_wrong(rows, said):
    class Wrong(Split):
        def split(self, task):
            return Shards(tuple(rows(task.samples)))

    with pytest.raises(AssertionError, match=said):
        check_split(Wrong())


def test_labels_are_dealt_as_by_hand():
    # Four labels of six samples each, four workers on two hosts.
    targets = np.repeat([0, 1, 2, 3], 6)
    hosts = (0, 0, 1, 1)
    similar, different = (
        labels_of_workers(split("by-label", groups=groups).split(task(targets, hosts=hosts)), targets)
        for groups in ("similar", "different")
    )
    assert similar == [[0], [1], [2], [3]]
    assert different == [[0], [2], [1], [3]]  # the first host has 0 and 2, the second 1 and 3
    two = split("by-label", labels=2, groups="similar").split(task(targets, hosts=hosts))
    # Eight pieces in order: 0 0 1 1 2 2 3 3; the first host has the first four, each of its workers every other one.
    assert labels_of_workers(two, targets) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    far = split("by-label", labels=2, group=2).split(task(targets, hosts=hosts))
    assert labels_of_workers(far, targets) == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_an_alpha_that_leaves_a_worker_empty_each_time_is_said():
    with pytest.raises(ValueError, match=r"alpha is 0\.001, but must be larger: .* take a larger one, or definition"):
        split("dirichlet", alpha=0.001).split(task(np.zeros(500, np.int64), 4))


def test_moved_points_are_nearest_samples_by_brute_force():
    # On a line: worker 0 has 0..9, worker 1 has 90..99; half of the points move to where a worker has none.
    inputs = np.concatenate([np.arange(10.0), np.arange(90.0, 100.0)])[:, None]
    targets = np.repeat([0, 1], 10)
    moved = split("moved-points", base=split("sorted"), share=0.1, dimensions=1)
    found = moved.split(task(targets, 2, inputs=inputs))
    for own, other in ((0, 1), (1, 0)):
        values = inputs[found.rows[own], 0]
        assert len(values) == 10
        assert np.sum(values < 50) == (9 if own == 0 else 1)
        # The farthest point from a worker's is the other end of the line.
        assert (99.0 if own == 0 else 0.0) in values
        assert other in targets[found.rows[own]]
    half = dataclasses.replace(moved, step=0.5)
    away = np.setdiff1d(half.split(task(targets, 2, inputs=inputs)).rows[0], np.arange(10))
    assert away.size == 0 or set(inputs[away, 0]) <= {90.0}  # near the middle the nearest are the ends of the gap


def test_a_job_draws_its_split_by_the_seed_of_the_run():
    digits, cluster = problem("digits-mlp"), example_cluster(1, 4)
    job = Job(digits, 0.01, shards=split("dirichlet", alpha=1.0))
    rows = [job.split(cluster, seed).rows for seed in (3, 3, 4)]
    assert all(map(np.array_equal, rows[0], rows[1]))
    assert not all(map(np.array_equal, rows[0], rows[2]))
    given_rows = dataclasses.replace(job, shards=[each.tolist() for each in rows[0]])
    one, same = (simulate(each, cluster, "all-reduce", until=Until(steps=5), seed=3) for each in (job, given_rows))
    assert one.same(same)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: split("dirichlet", definition="yurochkin"), "definition is 'yurochkin', but must be one of"),
        (lambda: split("by-label", groups="same"), "groups is 'same', but must be one of 'similar', 'different'"),
        (lambda: split("moved-points", base=split("sorted"), step=0.0), r"step is 0\.0, but must be above 0"),
        (lambda: split("dirichlets"), "there is no split named 'dirichlets'"),
        (lambda: split("independent").split(task(np.zeros(3))), "samples is 3, but must be at least 4"),
        (lambda: split("clusters", clusters=9).split(task(np.zeros(8))), "samples is 8, but must be at least 9"),
        (lambda: split("by-label").split(task(np.full((9, 3), 7))), r"targets has the shape \(9, 3\), but must be"),
        (lambda: split("independent", by_speed=True).split(task(np.zeros(9), compute_s=(0.0,) * 4)), "compute_s is"),
        (lambda: split("sorted", by_speed=True).split(task(np.zeros(9), compute_s=(1, 1, 1, 99.0))), "worker 3 would"),
        (lambda: Job(None, 1.0, num_bytes=1, shards="dirichlet"), r"shards is 'dirichlet', but.*split\('dirichlet'\)"),
        (lambda: Job(None, 1.0, num_bytes=1, shards=[[0.5], [1.0]]), "the indices of each worker's samples, or a Sp"),
        (lambda: Job(None, 1.0, num_bytes=1, moves="by-loss"), r"moves is 'by-loss', but.*move\('by-loss'\)"),
        (lambda: Job("digits-mlp", 1.0), r"problem is 'digits-mlp', but.*playground\.problem\('digits-mlp'\)"),
        (lambda: Job(None, 1.0, num_bytes=1, shards=split("sorted")), "must be None where time alone is simulated"),
    ],
)
def test_what_can_not_be_is_said(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_umap_that_isnt_installed_is_missed_before_anything_begins(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r'umap is not installed: pip install "alpa-dejavu\[umap\]"'):
        split("moved-points", base=split("sorted"), projection="umap")


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


def test_splits_and_policies_are_read_as_the_file_says(tmp_path):
    job = read(tmp_path, DATA).job
    base = split("by-label", labels=2, groups="similar")
    assert job.shards == split("moved-points", base=base, share=0.2)
    assert job.moves == move("by-loss", share=0.3, rest=2)
    assert job.bytes_of_a_sample() == 100
    plain = read(tmp_path, DATA.replace("sample_bytes: 100\n", "")).job
    assert plain.bytes_of_a_sample() == 64 * 4 + 4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("moved-points: {", "moved-point: {", "there is no split 'moved-point'; did you mean 'moved-points'"),
        ("{base: {by-label", "{base: {by-lable", "there is no base 'by-lable'; did you mean 'by-label'"),
        ("labels: 2", "labels: 400", "the number of samples is 1437, but must be at least 3200"),
        ("{by-label: {labels: 2, groups: similar}}", "{dirichlet: {alpha: 1e-3, least: 150}}", "alpha is 0.001, but m"),
        ("  by-loss: {", "  by-los: {", "no policy of moving samples 'by-los'; did you mean"),
        ("base: {by-label: {labels: 2, groups: similar}}, ", "", "'moved-points' lacks the setting 'base'"),
        ("rest: 2", "metric: loss", "'metric' is no setting of 'by-loss'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, old, new, said):
    check_refused(tmp_path, DATA, old, new, said)


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
