"""Balanced top-k: a smooth top-k of each row, with a load for each column."""

from .operator import Balanced, BalancedGradients, balancedtopk

__all__ = ["Balanced", "BalancedGradients", "balancedtopk"]
