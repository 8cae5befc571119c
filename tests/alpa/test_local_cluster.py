import os
import subprocess
from pathlib import Path

import pytest
import ray

from alpa_dejavu.alpa.local_cluster import local_cluster


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(("devices", "hosts"), [(0, 1), (1, 0)])
def test_nothing_is_no_cluster(devices: int, hosts: int) -> None:
    with pytest.raises(ValueError, match="at least one host and one device"), local_cluster(devices, hosts):
        pytest.fail("the block must not run")


@pytest.mark.ray
def test_hosts_have_their_devices_and_an_error_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(KeyError, match="from the block"), local_cluster(devices=3, hosts=2):  # noqa: PT012
        directory = os.environ["RAY_TMPDIR"]
        assert "RAY_ADDRESS" not in os.environ
        assert [node["Resources"]["GPU"] for node in ray.nodes()] == [3.0, 3.0]
        worker = ray.get(ray.remote(num_gpus=1)(lambda: os.getpid()).remote())
        assert is_running(worker)
        with pytest.raises(RuntimeError, match="already"), local_cluster():
            pytest.fail("the block must not run")
        bystander = subprocess.Popen(["sleep", "infinity"])
        raise KeyError("from the block")
    assert not ray.is_initialized()
    assert not os.path.exists(directory)
    assert not is_running(worker)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"
