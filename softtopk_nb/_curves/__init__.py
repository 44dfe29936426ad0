"""The curves f of ThreTopK, a file for each; `base` says what a curve is."""
