"""Tiles of tensors between workers, without Ray: the workers of a group are objects that deliver at once."""

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from alpa_stock_jax import _ray_mailbox
from alpa_stock_jax._ray_mailbox import Activity, Counters, Group, Mailbox, PeerWatch, peer_timeout_s
from alpa_stock_jax._ray_resharding import instruction_name
from alpa_stock_jax._ray_tiles import Canvas, TileExchange, without_repeats


class _Worker:
    """Stands for an actor: `worker.deliver.remote(messages)` puts them into its mailbox."""

    def __init__(self):
        self.exchange = TileExchange(60.0)
        self.deliver = SimpleNamespace(remote=lambda messages: self.exchange.mailbox.put(messages))
        self.answer = SimpleNamespace(remote=lambda: None)


def _pair():
    workers = [_Worker(), _Worker()]
    for rank, worker in enumerate(workers):
        worker.exchange.join(Group("group", rank, workers, {"a": 0, "b": 1, "c": 1}))
    return [worker.exchange for worker in workers]


def _tile(offset, rank, gpu_idx):
    return SimpleNamespace(offset=offset, rank=rank, gpu_idx=gpu_idx)


def test_tiles_from_two_devices_make_one_tensor():
    sender, receiver = _pair()
    tensor = np.arange(24, dtype=np.float32).reshape(4, 6)
    halves = [tensor[:2], tensor[2:]]
    whole = [slice(0, 2), slice(0, 6)]
    send = [SimpleNamespace(device_id=i, tile_spec=_tile(whole, rank=1, gpu_idx=0)) for i in range(2)]
    receive = SimpleNamespace(
        device_id=0,
        shape=(4, 6),
        dtype=np.float32,
        tile_specs=[_tile([slice(2 * i, 2 * i + 2), slice(0, 6)], rank=0, gpu_idx=i) for i in range(2)],
    )
    for factor in (1, 2):  # the second exchange isn't mixed up with the first
        sender.send("group", [half * factor for half in halves], send)
    for factor in (1, 2):
        np.testing.assert_array_equal(receiver.receive("group", receive, None), tensor * factor)
    assert len(receiver.mailbox) == 0


def test_a_broadcast_reaches_a_worker_once_for_all_its_devices():
    sender, receiver = _pair()
    sender.broadcast("group", "a$b$c", np.ones(3))
    assert len(receiver.mailbox) == 1
    np.testing.assert_array_equal(receiver.receive_broadcast("group", "a$b$c"), np.ones(3))


def test_missing_tiles_are_an_error_unless_there_is_something_to_keep():
    half = np.ones(2)
    empty = Canvas((4,), np.float64)
    empty.paint([slice(0, 2)], half)
    with pytest.raises(RuntimeError, match="2 of 4 elements"):
        empty.finished()
    kept = Canvas((4,), np.float64, existing=np.full(4, 7.0))
    kept.paint([slice(0, 2)], half)
    np.testing.assert_array_equal(kept.finished(), [1, 1, 7, 7])


class _Peer:
    """An actor that answers at once, each time what it does then."""

    def __init__(self, *does):
        self._does = iter(does)
        self.answer = SimpleNamespace(remote=lambda: next(self._does))


def _watch(monkeypatch, seconds, *does):
    """A wait, looked at once a minute; each look takes an answer."""
    monkeypatch.setattr(_ray_mailbox.ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr(_ray_mailbox.ray, "get", lambda ref: ref)
    clock = itertools.count(0.0, 60.0)
    return PeerWatch(_Peer(*does), 1, "instruction 3", seconds, lambda: next(clock))


COMPUTES = Activity("host 0 of mesh 1", "computes", True)
IDLE = Activity("host 0 of mesh 1", "is idle", False)


def test_a_wait_ends_when_the_peer_computes_nothing_for_too_long(monkeypatch):
    watch = _watch(monkeypatch, 100.0, IDLE, IDLE)
    watch()
    said = "waits for host 0 of mesh 1 in instruction 3, for 100 s in vain, and host 0 of mesh 1 is idle;"
    with pytest.raises(TimeoutError, match=rf"{said} .* ALPA_PEER_TIMEOUT_S"):
        watch()


def test_a_peer_that_computes_is_waited_for(monkeypatch):
    watch = _watch(monkeypatch, 100.0, *[COMPUTES] * 9, IDLE, IDLE)
    for _ in range(10):
        watch()
    with pytest.raises(TimeoutError):
        watch()


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan"])
def test_a_time_out_is_a_positive_number(given):
    with pytest.raises(ValueError, match=f"ALPA_PEER_TIMEOUT_S is '{given}', but must be a positive number"):
        peer_timeout_s({"ALPA_PEER_TIMEOUT_S": given})


def test_scalars_keep_their_rank():
    sender, receiver = _pair()
    sender.send("group", [np.float32(3)], [SimpleNamespace(device_id=0, tile_spec=_tile([], rank=1, gpu_idx=0))])
    spec = SimpleNamespace(device_id=0, shape=(), dtype=np.float32, tile_specs=[_tile([], rank=0, gpu_idx=0)])
    assert receiver.receive("group", spec, None).shape == ()


def test_specifications_are_carried_out_once():
    first, second = (_tile([slice(0, n)], rank=0, gpu_idx=0) for n in (1, 2))
    specs = [(0, first.offset), (0, second.offset), (0, first.offset)]
    assert without_repeats(specs) == specs[:2]


def test_a_message_is_waited_for():
    mailbox = Mailbox()
    threading.Timer(0.05, lambda: mailbox.put({("key", 0): "tile"})).start()
    assert mailbox.take(("key", 0), check=lambda: None) == "tile"


def test_waiting_ends_when_the_sender_has_died():
    def check():
        raise RuntimeError("has died")

    with pytest.raises(RuntimeError, match="has died"):
        Mailbox().take(("key", 0), check)


def test_an_instruction_is_named_by_its_place():
    def one(kind, task, arrays, info=""):
        return SimpleNamespace(opcode=SimpleNamespace(name=kind), task_uuid=task, output_uuids=arrays, info=info)

    listed = [one("RUN", 7, [5], "stage 0"), one("RECV", 7, [4]), one("RECV", 7, [5]), one("FREE", None, None),
              one("RUN", 8, [6], "stage 3")]  # fmt: skip
    assert instruction_name(listed, 7, 5) == "instruction 3 of 5, which receives for stage 3"
    assert instruction_name(listed, 9, 5) == "receiving array 5"


def test_both_sides_number_alike():
    sent, taken = Counters(), Counters()
    channel = ("group", 0, 1)
    assert [sent.key(*channel) for _ in range(3)] == [taken.key(*channel) for _ in range(3)]
    assert sent.key("other") == ("other", 0)
