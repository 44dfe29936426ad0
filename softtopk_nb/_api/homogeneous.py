"""What follows from a potential that grows in proportion with x and the temperature."""

from __future__ import annotations

from typing import Any


def in_temperature(height: Any, x: Any, gradient: Any, temperature: Any) -> Any:
    """The derivative in the temperature of what is homogeneous in it and x: Euler's identity.

    Arrays of any library: one number for each row of x and its gradient, whose last axis is n.
    Where an entry is infinite its product with the gradient is to be 0: x is to be finite.
    """
    return (height - (x * gradient).sum(-1)) / temperature
