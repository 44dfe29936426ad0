"""Make a store of compiled kernels, as wheels hold it, of the kernels in a cache.

    NUMBA_CACHE_DIR=CACHE NUMBA_CPU_NAME=PROCESSOR NUMBA_CPU_FEATURES= build_store.py LEVEL FOLDER

PROCESSOR is LLVM's name for the level. What CACHE has for another processor alone is compiled for
it first. No kernel is run, so that this processor need not have the level. The store is written to
FOLDER, under the tag of this Python and its libraries. It holds no path, no date and no order that
depends on this machine.
"""

from __future__ import annotations

import pickle
import pkgutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import config
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

import softtopk_nb  # noqa: F401  # what the pickles name is imported
from softtopk_nb._compile import precompiled, ranges
from softtopk_nb._compile.stamp import package_stamp

DIGEST = 32  # bytes before each pickle of the cache


class Cached(NamedTuple):
    """A kernel in the cache."""

    processor: tuple[str, str, str]
    label: str
    signature: Any
    payload: Any

    @property
    def function(self) -> tuple[str, str]:
        """The names of its module and of the function in it."""
        described = self.payload[1]
        return described.modname, described.qualname

    @property
    def name(self) -> str:
        """Its name in a store."""
        return precompiled.entry(*self.function, self.label, self.signature)


def cached(folder: Path) -> Iterator[Cached]:
    """Each kernel in the cache that a store can hold, for every processor."""
    for index in sorted(folder.rglob("*.nbi")):
        for (signature, processor, about), file in pickle.loads(
            index.read_bytes()[DIGEST:]
        ).items():
            payload = pickle.loads((index.parent / file).read_bytes()[DIGEST:])
            label = about if isinstance(about, str) else ""
            if "<locals>" in payload[1].qualname and not label:
                continue  # its name does not say what it holds
            yield Cached(processor, label, signature, payload)


def of_level(folder: Path) -> dict[str, Any]:
    """What Numba makes the kernels of, by their names, for the processor that Numba is told."""
    processor = cpu_target.target_context.codegen().magic_tuple()
    found = {each.name for each in cached(folder) if each.processor == processor}
    others = {each.name: each for each in cached(folder) if each.name not in found}
    for name in sorted(others):
        module, function = others[name].function
        pkgutil.resolve_name(f"{module}:{function}").compile(others[name].signature)
    kernels = {each.name: each.payload for each in cached(folder) if each.processor == processor}
    if missing := others.keys() - kernels.keys():
        raise SystemExit(f"{others[missing.pop()].function} was compiled and is not in {folder}")
    return kernels


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
    wanted |= {ranges.entry_point_of(described)}
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
    level, folder = sys.argv[1:]
    kernels = {
        name: dumps(stripped(payload)) for name, payload in of_level(Path(config.CACHE_DIR)).items()
    }
    path = Path(folder) / precompiled.tag() / f"{level}.zip"
    write(path, kernels)
    size = path.stat().st_size / 2**20
    print(f"{len(kernels)} kernels, {size:.1f} MB in {path}")


if __name__ == "__main__":
    main()
