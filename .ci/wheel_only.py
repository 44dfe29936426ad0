"""Plugin of pytest: skips each test that would compile something; the others use a wheel's code.

PYTHONPATH=.ci python -m pytest -p wheel_only tests/hardtopk
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from numba.core import dispatcher

_compile = dispatcher._FunctionCompiler.compile


def _compile_outside_tests(*args: Any) -> Any:
    if "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("compiles")
    return _compile(*args)


dispatcher._FunctionCompiler.compile = _compile_outside_tests
