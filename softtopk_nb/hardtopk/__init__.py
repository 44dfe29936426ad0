"""The hard top-k, the limit of all other constructions as the temperature goes to 0."""

from typing import TYPE_CHECKING

from .._lazy import attach

if TYPE_CHECKING:
    from .operator import hardtopk
else:
    __getattr__, __dir__ = attach(__name__, {".operator": ("hardtopk",)})

__all__ = ["hardtopk"]
