"""The curves f of ThreTopK, a file for each; `base` defines the interface of a curve."""
