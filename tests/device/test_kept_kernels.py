"""Compiled kernels on disk: a second process compiles none, and has the same machine code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ptx
import pytest

pytestmark = pytest.mark.ptx

# Prints how many kernels it has compiled for a device that need not be there, digests of their
# machine code, and a digest of what all kernels of the package are made of.
PROGRAM = '''
import hashlib, json
import numpy as np
from numba.cuda import dispatcher
from numba.cuda.codegen import CUDACodeLibrary
import kernels
from softtopk_nb._cuda import cache
from softtopk_nb._cuda.thread_groups import ThreadGroup

compiled = []

def bind(kernel):
    """Done to each that is compiled, to have its machine code."""
    compiled.append(kernel)
    kernel._codelibrary.get_cubin()

class Device:
    compute_capability = 9, 0

dispatcher._Kernel.bind = bind
dispatcher.get_current_device = Device
CUDACodeLibrary._ensure_cc = lambda self, cc: (9, 0, "a")

code = {}
for label in ("solve laplace", "solve clip", "solve user"):
    kernel = kernels.KERNELS[label].make(np.float32, ThreadGroup(8, 4))
    (found,) = kernel._compile(Device.compute_capability).overloads.values()
    code[label] = hashlib.sha256(found._codelibrary.get_cubin().code).hexdigest()

made_of = [
    (repr(cache.fingerprint(case.kernel.function)), case.kernel.arguments, case.kernel.bounds)
    for case in kernels.cases()
    if "user" not in case.label and case.capability == Device.compute_capability
]
assert len({*made_of}) == len(made_of), "two kernels that nothing tells apart"
print(json.dumps([len(compiled), code, hashlib.sha256(repr(made_of).encode()).hexdigest()]))
'''


def results(folder, seed=1):
    tests = str(Path(ptx.__file__).parent)
    root = str(Path(tests).parent)
    told = {"NUMBA_CACHE_DIR": str(folder), "PYTHONHASHSEED": str(seed)}
    told["PYTHONPATH"] = os.pathsep.join((tests, root))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **told},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(run.stdout)


def test_a_second_process_compiles_no_kernel(tmp_path):
    """But for one with a user's curve; and damaged files are as if they were not there."""
    compiled, code, made_of = results(tmp_path)
    assert compiled == len(code)
    compiled_again, code_again, made_of_again = results(tmp_path, seed=2)
    assert compiled_again == 1
    assert made_of_again == made_of
    assert code_again | {"solve user": None} == code | {"solve user": None}
    for file in tmp_path.rglob("*.nbc"):
        file.write_bytes(file.read_bytes()[:-1])
    assert results(tmp_path)[0] == compiled


def test_a_numba_cuda_without_what_is_used_of_it_is_refused():
    program = """
from numba.cuda import codegen

del codegen.CUDACodeLibrary.get_cubin
import softtopk_nb._cuda.cache
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    missing = "has no codegen.CUDACodeLibrary.get_cubin"
    assert f"{missing}; expected numba-cuda 0.24 or newer" in run.stderr
