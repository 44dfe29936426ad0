"""The hard top-k, the limit of all other constructions as the temperature goes to 0."""

from .operator import hardtopk

__all__ = ["hardtopk"]
