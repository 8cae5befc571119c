"""Made-up clusters of unlike hosts, for tests of where stages run."""

import dataclasses

from alpa_dejavu.problem import Cluster, Device, Host, Link

WITHIN, FAST, SLOW = Link(1e-5, 1e11), Link(1e-5, 1e10), Link(1e-4, 2e8)


def device(rate, memory_bytes=2.0**34, name="made up"):
    return Device(name, memory_bytes, {"float32": rate}, rate, 1e12, kernel_s=1e-6, dispatch_s=1e-5)


def cluster(hosts, link=lambda a, b: FAST, name="unlike"):
    links = tuple(tuple(WITHIN if a is b else link(a, b) for b in hosts) for a in hosts)
    return Cluster(name, tuple(hosts), links)


def host(name, rate=1e12, devices=2, **figures):
    price = figures.pop("price", None)
    return Host(name, device(rate, **figures), devices, price)


def two_and_two(slow=0.25e12, devices=2, **figures):
    """Two hosts, and two slower ones."""
    fast = [host(name, devices=devices) for name in "ab"]
    return cluster([*fast, *(host(name, slow, devices, **figures) for name in "cd")])


def islands(slow=SLOW, devices=2):
    """Four equal hosts; the first and the third are near each other, and so are the others."""
    hosts = [host(name, devices=devices) for name in "abcd"]
    return cluster(hosts, lambda a, b: FAST if (ord(a.name) - ord(b.name)) % 2 == 0 else slow, "islands")


def blind(of):
    """The cluster as it looks to who takes all hosts for the worst one."""
    slowest = min(of.hosts, key=lambda each: each.device.rate("float32"))
    between = [link for a, row in enumerate(of.links) for b, link in enumerate(row) if a != b]
    worst = min(between, key=lambda link: link.bytes_per_s)
    memory = min(each.device.memory_bytes for each in of.hosts)
    hosts = [each.name for each in of.hosts]
    device = dataclasses.replace(slowest.device, memory_bytes=memory)
    return Cluster.uniform("blind", hosts, device, slowest.num_devices, WITHIN, worst)
