"""Layers of transformers: recovered from made-up GPUs; one that deviates is known by its own measurements."""

import numpy as np
import pytest

from alpa_dejavu.costs.latency.learned import BlockModel, Blocks

PRODUCTS, TRAFFIC, EXCHANGE, FLOOR_S = 1.5, 9.0, 2.5, 1e-3


def _blocks(gpu: str, count: int, seed: int) -> Blocks:
    rng = np.random.default_rng(seed)
    ways = rng.choice([1.0, 2.0, 4.0], count)
    return Blocks(
        gpu=np.full(count, gpu),
        is_head=np.zeros(count, dtype=np.bool_),
        products_s=np.exp(rng.uniform(-7, -2, count)),
        traffic_s=np.exp(rng.uniform(-9, -5, count)),
        exchange_s=np.where(ways > 1, np.exp(rng.uniform(-9, -5, count)), 0.0),
        messages=ways - 1,
        through_host=np.zeros(count, dtype=np.bool_),
        tensor_cores=np.zeros(count, dtype=np.bool_),
    )


def _joined(parts: list[Blocks]) -> Blocks:
    fields = Blocks.__dataclass_fields__
    return Blocks(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})


def _seconds(blocks: Blocks) -> np.ndarray:
    slow = np.where(blocks.gpu == "slow", 1.5, 1.0)
    work = PRODUCTS * slow * blocks.products_s + TRAFFIC * blocks.traffic_s + EXCHANGE * blocks.exchange_s
    return np.maximum(work + 2e-4 * blocks.messages, FLOOR_S)


@pytest.fixture(scope="module")
def model() -> BlockModel:
    blocks = _joined([_blocks(gpu, 60, seed) for seed, gpu in enumerate(["one", "two", "slow"])])
    return BlockModel().fit(blocks, _seconds(blocks), blocks.gpu)


@pytest.mark.parametrize("gpu", ["one", "slow"])
def test_knows_gpus_by_their_own_measurements(model, gpu):
    blocks = _blocks(gpu, 40, 7)
    predicted = model.predict(blocks)
    assert np.abs(predicted.mean / _seconds(blocks) - 1).mean() < 0.06
    assert predicted.in_domain.all()


def test_a_gpu_that_was_never_seen_is_like_the_others_and_said_to_be_out_of_domain(model):
    blocks = _blocks("new", 40, 8)
    predicted = model.predict(blocks)
    assert np.abs(predicted.mean / _seconds(blocks) - 1).mean() < 0.2
    assert not predicted.in_domain.any()
    assert (predicted.lower <= predicted.mean).all()
    assert (predicted.mean <= predicted.upper).all()


def test_seconds_are_checked():
    blocks = _blocks("one", 2, 0)
    with pytest.raises(ValueError, match="leave out what wasn't measured"):
        BlockModel().fit(blocks, [1.0, np.nan], blocks.gpu)
