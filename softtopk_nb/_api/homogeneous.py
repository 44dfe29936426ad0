"""Euler's identity for functions that are homogeneous of degree 1 in x and the temperature."""

from __future__ import annotations

from typing import Any


def in_temperature(scalar: Any, x: Any, gradient: Any, temperature: Any) -> Any:
    """The derivative in the temperature of a function that is homogeneous in it and x (Euler).

    Arrays of any library: `scalar` has one number for each row of x and of the gradient, whose last
    axis is n. x must be finite: replace infinite entries by numbers, as their gradient is 0.
    """
    return (scalar - (x * gradient).sum(-1)) / temperature
