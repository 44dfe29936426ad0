"""How Numba compiles the functions of the package: with what they need, and nothing else.

Most of the time of a first call goes into helpers, functions that only compiled code calls. Each
becomes part of the kernels that call it. Numba would also emit machine code for it, which nobody
calls, and would optimise it whether or not that pays.
"""

from __future__ import annotations

import inspect
from typing import Any

from numba import _dynfunc
from numba.core import compiler, typed_passes, untyped_passes
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import PassManager, register_pass

from . import ranges

# Passes that find nothing in the package's own functions: they have no `with` blocks, no inlined or
# `literally` calls, no loops over literals, no arithmetic on whole arrays.
_NEEDLESS = (
    "WithLifting",
    "InlineInlinables",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "InlineOverloads",
    "NopythonRewrites",
    "NoPythonSupportedFeatureValidation",
    "AnnotateTypes",
    "DumpParforDiagnostics",
)
_OF_CLOSURES = untyped_passes.InlineClosureLikes, untyped_passes.MakeFunctionToJitFunction


class _HelperLibrary(JITCodeLibrary):  # type: ignore[misc]  # Numba comes without type hints
    """A helper's code for LLVM, to be linked into kernels; it never becomes machine code.

    Every function is simplified here. Loops are vectorised here too, while the function around them
    is small; a helper without loops is left to be optimised with its callers.
    """

    has_loops: bool

    def _optimize_final_module(self) -> None:
        if self.has_loops:
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """Lower a helper to LLVM's language."""

    _name = "helper_lowering"

    def run_pass(self, state: Any) -> bool:
        context = state.targetctx
        library = _HelperLibrary(context.codegen(), state.func_id.func_qualname)
        library.has_loops = bool(compute_cfg_from_blocks(state.func_ir.blocks).loops())
        library.enable_object_caching()
        state.library, state.flags = library, state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)
        made = state["cr"]
        # What tells Numba's callers of the helper which compiled form they call; nobody runs it.
        name = made.fndesc.qualname.rpartition(".")[2]
        module = made.fndesc.lookup_module()
        stub = _dynfunc.make_function(module, name, "", 0, made.env, (library,))
        context.insert_user_function(stub, made.fndesc, [library])
        if hasattr(library, "_reload_init"):  # not every supported Numba has it
            state.reload_init.extend(library._reload_init)
        state["cr"] = made._replace(cfunc=stub)
        return True


_MANAGERS: dict[tuple[Any, bool], Any] = {}


def _manager(state: Any, lowering: Any) -> Any:
    """Numba's pipeline without needless passes, and with this way to lower a function."""
    # Comprehensions and inner functions are code objects among the constants.
    has_closures = any(map(inspect.iscode, state.func_id.code.co_consts))
    key = lowering, has_closures
    if key not in _MANAGERS:
        manager = PassManager("nopython")
        for each, description in compiler.DefaultPassBuilder.define_nopython_pipeline(state).passes:
            if each is typed_passes.NativeLowering:
                manager.add_pass(lowering, description)
            elif each.__name__ not in _NEEDLESS and (has_closures or each not in _OF_CLOSURES):
                manager.add_pass(each, description)
        manager.finalize()
        _MANAGERS[key] = manager
    return _MANAGERS[key]


class KernelCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """Compile a function that Python or C calls."""

    def define_pipelines(self) -> Any:
        over_ranges = ranges.is_over_ranges(self.state.func_id.func)
        return [
            _manager(self.state, ranges.Lowering if over_ranges else typed_passes.NativeLowering)
        ]


class HelperCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """Compile a function that only compiled code calls."""

    def define_pipelines(self) -> Any:
        return [_manager(self.state, _HelperLowering)]
