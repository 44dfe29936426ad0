"""The comparison table of README.md, once and small: `alternatives.py` measures it in full."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the unit is torch.softmax: needs the extra torch")

import alternatives


# OTT imports JAXopt, which warns that it is no longer maintained.
@pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")
def bench_comparison_table(benchmark):
    figures = benchmark.pedantic(alternatives.measure, args=(alternatives.SMALL,), rounds=1)
    assert len(alternatives.table(figures)) == 2 + len(alternatives.ROWS)
    assert all(found["ratio"] > 0 for found in figures.values())
