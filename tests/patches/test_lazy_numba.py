"""Numba waits until it is needed."""

import subprocess
import sys

import numpy as np
from alpa.util import maybe_numba_jit


def test_importing_alpa_imports_no_numba():
    code = "import alpa, sys; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_functions_are_compiled_at_their_first_call():
    offset = 3

    @maybe_numba_jit
    def add(values):
        total = 0
        for value in values:
            total += value
        return total + offset

    assert add(np.arange(4)) == 9
    assert add(np.arange(5)) == 13
