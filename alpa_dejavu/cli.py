"""`alpa-dejavu`: the planner on the command line."""

from __future__ import annotations

import click

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Plans parallel training for Alpa, with or without devices."""
