import numpy as np

from demo.text import batches, standard_library
from demo.training import Job, create_state, largest_relative_difference, train_on_one_device


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
