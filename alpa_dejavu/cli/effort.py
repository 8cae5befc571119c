"""How long a command is going to take, said before it starts where that is long."""

from __future__ import annotations

import click

from alpa_dejavu.layers.models import known_models

_SAID_S = 10.0
_KNOWN_S, _CONVOLUTIONS_S, _OWN_S = 6.0, 40.0, 8.0
"""Tracing, cutting and sharding a known model, one of convolutions, and a function of the user's."""
_HOST_S, _HOSTS_S = 0.3, 0.015
"""The search for each host, and for each pair of hosts."""
_MICRO_BATCH_S = 1e-4
_MOST_LAYERS = 48
"""Of the numbers that are tried by themselves; with more, tables grow by the square, and each entry by the layers."""
_SLICERS = {"exhaustive": 5.0, "gradient": 10.0, "mcmc": 10.0}
"""So many times as long as the dynamic slicer."""


def planning_s(model: str, num_hosts: int, layers: int | None, micro_batches: int, slicer: str) -> float:
    """Seconds that planning takes on one core that does nothing else, to about a factor of three.

    >>> planning_s("gpt-125m", 1, None, 32, "dynamic") < 10 < planning_s("gpt-125m", 64, None, 1024, "dynamic")
    True
    """
    known = model.lower() in known_models()
    made_s = (_CONVOLUTIONS_S if model.lower().startswith("wresnet") else _KNOWN_S) if known else _OWN_S
    deep = max(1.0, (layers or _MOST_LAYERS) / _MOST_LAYERS)
    search_s = (_HOST_S * num_hosts + _HOSTS_S * num_hosts**2) * deep**3 * _SLICERS.get(slicer, 1.0)
    return made_s * deep + search_s + _MICRO_BATCH_S * micro_batches


def announce(what: str, expected_s: float) -> None:
    """Says on standard error that something takes more than ten seconds, and how it is ended."""
    if expected_s > _SAID_S:
        click.echo(f"{what} takes about {_roughly(expected_s)}; Ctrl-C ends it", err=True)


def _roughly(value: float) -> str:
    """A duration of one digit.

    >>> [_roughly(14), _roughly(100), _roughly(1900), _roughly(16000)]
    ['10 seconds', '2 minutes', '30 minutes', '4 hours']
    """
    for unit, seconds in (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)):
        if value >= 1.5 * seconds or unit == "seconds":
            break
    return f"{float(f'{value / seconds:.0e}'):.0f} {unit}"
