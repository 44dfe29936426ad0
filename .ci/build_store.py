"""Make a store of compiled kernels, as wheels hold it, of a cache that was filled for a level.

    build_store.py CACHE LEVEL FOLDER

CACHE is a folder that NUMBA_CACHE_DIR named while kernels were compiled with NUMBA_CPU_NAME=LEVEL
and an empty NUMBA_CPU_FEATURES. The store is written to FOLDER, under the tag of this Python and
its libraries. It holds no path, no date and no order that depends on this machine.
"""

from __future__ import annotations

import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba.core.serialize import dumps

import softtopk_nb  # noqa: F401  # what the pickles name is imported
from softtopk_nb._compile import precompiled
from softtopk_nb._compile.cache import package_stamp

DIGEST = 32  # bytes before each pickle of the cache


def cached(folder: Path, level: str) -> Iterator[tuple[str, Any]]:
    """Each kernel in the cache: its name in a store, and what Numba makes it of."""
    for index in folder.rglob("*.nbi"):
        for (signature, magic, about), file in pickle.loads(index.read_bytes()[DIGEST:]).items():
            if magic[1] != level:
                raise SystemExit(f"{index} was compiled for {magic[1]}, expected {level}")
            payload = pickle.loads((index.parent / file).read_bytes()[DIGEST:])
            about_closure = about if isinstance(about, str) else ""
            described = payload[1]
            if "<locals>" in described.qualname and not about_closure:
                continue  # its name does not say what it holds
            name = precompiled.entry(
                described.modname, described.qualname, about_closure, signature
            )
            yield name, stripped(payload)


def stripped(payload: Any) -> Any:
    """The kernel without what only other compiled code could use, and without paths.

    In place of its code in LLVM's language there is a module that names what the machine code
    defines; each name is a number there, so that no other code can be linked with it by mistake.
    """
    (name, kind, (code, bitcode)), *rest = payload
    if kind != "object":
        raise SystemExit(f"{name} is kept as {kind}, expected machine code")
    described, *_, environments = rest
    module = llvm.parse_bitcode(bitcode)
    defined = {
        each.name
        for each in (*module.functions, *module.global_variables)
        if not each.is_declaration
    }
    wanted = {described.llvm_func_name, described.llvm_cpython_wrapper_name}
    wanted |= {described.llvm_cfunc_wrapper_name, described.env_name}
    wanted |= {each.env_name for each in environments}
    names = ir.Module(name="names")
    names.triple = module.triple
    for symbol in sorted(wanted & defined):
        ir.GlobalVariable(names, ir.IntType(8), symbol).initializer = ir.IntType(8)(0)
    rest[5] = ""  # the annotated source
    rest[7] = tuple(each for each in environments if each.consts)  # the rest only import Numba
    return (name, kind, (code, llvm.parse_assembly(str(names)).as_bitcode())), *rest


def write(path: Path, kernels: dict[str, bytes]) -> None:
    """Write a store, the same for the same kernels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as store:
        for name, content in sorted({precompiled.STAMP: package_stamp(), **kernels}.items()):
            store.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)


def main() -> None:
    """Run the command."""
    cache, level, folder = sys.argv[1:]
    kernels = {name: dumps(payload) for name, payload in cached(Path(cache), level)}
    path = Path(folder) / precompiled.tag() / f"{level}.zip"
    write(path, kernels)
    size = path.stat().st_size / 2**20
    print(f"{len(kernels)} kernels, {size:.1f} MB in {path}")


if __name__ == "__main__":
    main()
