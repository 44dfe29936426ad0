"""Run a script in which Numba makes machine code for ARM Linux on another machine, and loads none.

    emit_aarch64.py SCRIPT [ARGUMENT ..]

The types of both machines are the same: 64 bits, the lowest byte first. Private names of Numba's
are replaced, so an upgrade may need a change here.
"""

from __future__ import annotations

import platform
import runpy
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen


def _options(codegen: Any, options: dict[str, Any]) -> None:
    """As Numba's for a JIT compiler on that machine."""
    options.update(cpu=codegen._get_host_cpu_name(), features=codegen._tm_features)
    options.update(reloc="default", codemodel="jitdefault", jit=True)


def _emit(library: Any) -> None:
    """Keep the machine code, as loading it does, for the cache on disk."""
    library._compiled_object = library._codegen._tm.emit_object(library._final_module)
    library._compiled = True


def main() -> None:
    """Run the command."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    platform.machine = lambda: "aarch64"
    llvm.get_process_triple = lambda: "aarch64-unknown-linux-gnu"
    JITCPUCodegen._customize_tm_options = _options
    JITCPUCodegen._add_module = lambda codegen, module: None
    JITCPUCodegen.set_env = lambda codegen, name, environment: None
    JITCodeLibrary._finalize_specific = _emit
    JITCodeLibrary.get_pointer_to_function = lambda library, name: 0
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
