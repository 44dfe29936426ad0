"""The layers that all operators share: checked arguments, arrays as rows, and results back."""
