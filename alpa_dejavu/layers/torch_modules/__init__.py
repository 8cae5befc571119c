"""Modules of PyTorch, exported by torch and translated to jax, so that they are planned like any train step.

Only what is called with a module imports torch, which no other part of the planner needs.
"""

from __future__ import annotations

from alpa_dejavu.layers.torch_modules._step import is_module, is_pair, module_step, of_any_batch

__all__ = ["is_module", "is_pair", "module_step", "of_any_batch"]
