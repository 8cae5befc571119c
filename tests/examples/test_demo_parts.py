import math

import numpy as np

from demo.text import batches, standard_library, unigram_entropy
from demo.training import Job, create_state, largest_relative_difference, train_on_one_device


def test_targets_are_the_inputs_one_byte_on() -> None:
    text = np.arange(200, dtype=np.uint8)
    batch = next(batches(text, batch_size=3, length=10, seed=0))
    assert batch["inputs"].shape == batch["targets"].shape == (3, 10)
    np.testing.assert_array_equal(batch["inputs"] + 1, batch["targets"])


def test_the_text_is_more_than_a_megabyte_and_less_than_random() -> None:
    text = standard_library()
    assert text.size > 1_000_000
    assert 2 < unigram_entropy(text) < math.log(256)


def test_the_difference_is_that_of_the_worst_tensor() -> None:
    expected = {"a": np.ones(4), "b": np.full(4, 10.0)}
    actual = {"a": np.ones(4), "b": np.array([10.0, 10.0, 10.0, 14.0])}
    assert largest_relative_difference(actual, expected) == 0.2


def test_one_device_learns() -> None:
    job = Job(batch_size=4)
    data = batches(standard_library(), job.batch_size, job.config.length, job.seed)
    first = next(data)
    _, losses = train_on_one_device(create_state(job), [first] * 4)
    assert losses[-1] < losses[0]
