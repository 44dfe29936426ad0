"""The hard top-k: what every other construction turns into as the temperature goes to 0."""

from .operator import hardtopk

__all__ = ["hardtopk"]
