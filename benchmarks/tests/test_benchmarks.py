"""The machinery of the benchmarks. Nothing is timed, and every figure here is made up."""

from __future__ import annotations

import copy
import importlib
import json
import pathlib

import numpy as np
import pytest

import softtopk_nb as stk

BENCHMARKS = pathlib.Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch):
    """Imports a module of the folder, which is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


MADE_UP = {
    "schema": 1,
    "machine": {"cpu": "made up", "host": "Made-Up", "cores": 2, "simd": "none", "device": "cpu"},
    "versions": {"softtopk_nb": "made up"},
    "threads": 2,
    "date": "2000-01-01",
    "results": [],
}


def result(operator="thretopk", curve="laplace", method="newton", ratio=1.0, **fields):
    return {
        "operator": operator,
        "curve": curve,
        "method": method,
        "what": "value",
        "rows": 1024,
        "n": 1024,
        "k": 32,
        "dtype": "float32",
        "data": "normal",
        "device": "cpu",
        "seconds": 0.001 * ratio,
        "unit_seconds": 0.001,
        "ratio": ratio,
        "low": 0.95 * ratio,
        "high": 1.05 * ratio,
        "rounds": 7,
        **fields,
    }


def made_up(*results, **fields):
    return {**copy.deepcopy(MADE_UP), "results": list(results), **fields}


# ------------------------------------------------------------------------------------ records


def test_a_record_comes_back_as_it_was_written(load, tmp_path):
    record = load("record")
    path = tmp_path / "made-up.json"
    written = made_up(result(), result("torch.topk", None, None, ratio=9), startup={"x": 1.0})
    record.write(written, path)
    assert record.read(path) == written
    assert path.read_text().count("\n  {") == 0  # one result a line
    record.write(made_up(), path)
    assert record.read(path)["results"] == []


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ({"schema": 2}, "schema"),
        ({"threads": "two"}, "threads"),
        ({"results": [{}]}, "result 0 has no 'operator'"),
        ({"results": [result(), result(ratio=2.0)]}, "two results"),
        ({"results": [result(rounds=True)]}, "rounds"),
        ({"results": [result(seconds="1")]}, "seconds"),
    ],
)
def test_a_broken_record_is_refused(load, tmp_path, broken, word):
    path = tmp_path / "made-up.json"
    path.write_text(json.dumps(made_up(**broken)))
    with pytest.raises(ValueError, match=word):
        load("record").read(path)


def test_what_a_file_says_about_the_machine(load):
    record = load("record")
    for device, gpu in (("cpu", None), ("cuda", "Made Up 9000")):
        head = record.head(device, gpu)
        record.check(head)
        assert head["machine"].get("gpu") == gpu
        assert head["versions"]["softtopk_nb"] == stk.__version__
    assert record.file_name(made_up()) == "made-up-2000-01-01.json"
    assert record.file_name(made_up(threads=1), "quick") == (
        "made-up-1-threads-2000-01-01-quick.json"
    )


def test_committed_results_follow_the_schema(load):
    record = load("record")
    for path in record.RESULTS.glob("*.json"):
        record.read(path)


# ---------------------------------------------------------------------------------- selections


def test_selections(load):
    cases = load("cases")
    full, quick = cases.select("full"), cases.select("quick")
    for chosen in (full, quick):
        names = [case.name for case in chosen]
        assert len(set(names)) == len(names)
        assert all(case.affordable for case in chosen)
        smooth = {(case.operator, case.curve) for case in chosen}
        assert {("thretopk", curve) for curve in cases.CURVES} <= smooth
        assert set(cases.OPERATORS) <= {case.operator for case in chosen}
        rare = cases.RARE if chosen is full else ()
        assert {case.data for case in chosen} == {*cases.DATA, *cases.SPREADS, *rare}
        assert {case.dtype for case in chosen} == {"float32", "float64"}
        assert {case.what for case in chosen} == {"value", "jvp", "pullback"}
    assert set(cases.SHAPES) <= {(c.rows, c.n, c.k) for c in full}
    assert len(quick) < len(full) / 5
    assert all("clip" in case.name for case in cases.select("full", "clip"))
    assert not any(c.operator == "itertopk" and c.n == 10**7 for c in full)


def test_rows_of_scores_vary_and_are_the_same_again(load):
    cases = load("cases")
    for data in (*cases.DATA, *cases.SPREADS, *cases.RARE):
        x = cases.scores(3, 50, "float32", data)
        assert x.dtype == np.float32
        assert x.shape == (3, 50)
        assert np.ptp(x) > (0.01 if data == "flat" else 1)
        assert len(np.unique(x)) > (20 if data == "ties" else 100)
        cases.scores.cache_clear()
        np.testing.assert_array_equal(x, cases.scores(3, 50, "float32", data))
    assert (np.diff(cases.scores(3, 50, "float64", "sorted")) >= 0).all()
    for data, spread in cases.SPREADS.items():
        wide = cases.scores(30, 50, "float64", data)
        np.testing.assert_allclose(wide, spread * cases.scores(30, 50, "float64", "normal"))


# -------------------------------------------------------------------------------------- clock


def test_figures_are_ratios_of_medians(load):
    found = load("clock").figures(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 2.0]))
    assert found == {
        "seconds": 4.0,
        "unit_seconds": 2.0,
        "ratio": 2.0,
        "low": 2.0,
        "high": 2.5,
        "rounds": 3,
    }


def test_an_operator_and_its_unit_take_turns(load):
    clock, order = load("clock"), []
    turns = clock.Turns(lambda: order.append("case"), lambda: order.append("unit"), 0.0)
    assert turns.rounds == clock.ROUNDS[0]
    order.clear()
    for _ in range(2):
        turns.time_others()
        turns.take()
    assert list(dict.fromkeys(order)) == ["unit", "case"]
    # A short call is repeated, and called once before it is timed.
    assert order.count("case") == 2 * (turns.repeat + 1) > 4
    found = turns.figures(np.array([1.0, 1.0]))
    assert found["seconds"] == 1 / turns.repeat
    assert found["rounds"] == 2
    turns = clock.Turns(lambda: None, lambda: None, 0.0, value=lambda: order.append("value"))
    order.clear()
    turns.time_others()
    assert set(order) == {"value"}
    found = turns.figures(np.array([1.0]))
    assert 0 < found["after_value"] < found["ratio"]


# ------------------------------------------------------------------------------------ compare


def test_compare_tells_losses_from_noise(load, tmp_path, capsys, monkeypatch):
    compare, record = load("compare"), load("record")
    old = made_up(*(result(curve=curve) for curve in ("laplace", "exp", "clip", "sigmoid")))
    new = made_up(
        result(curve="laplace", ratio=1.3),
        result(curve="exp", ratio=1.09, low=1.08, high=1.1),  # apart, but by less than a tenth
        result(curve="clip", ratio=1.3, low=1.0, high=1.4),  # more than a tenth, not apart
        result(curve="sigmoid", ratio=0.5),
        result(curve="normal"),
    )
    slower, faster = compare.changes(old, new)
    assert (slower.key[1], slower.slower, slower.counts) == ("laplace", True, True)
    assert (faster.key[1], faster.slower, faster.counts) == ("sigmoid", False, False)
    lines = compare.report(old, made_up(*new["results"], threads=1))
    assert lines[0].startswith("threads: 2 and 1")
    assert lines[-1].startswith("4 cases in both: 1 slower, 1 faster")
    assert lines[-1].endswith("0 only in the first, 1 only in the second")

    peer = made_up(result("torch.topk", None, None)), made_up(result("torch.topk", None, None, 2.0))
    (change,) = compare.changes(*peer)
    assert change.slower
    assert not change.counts

    for (first, second), status in (((old, new), 1), ((new, new), 0), (peer, 0)):
        paths = [tmp_path / "old.json", tmp_path / "new.json"]
        for path, one in zip(paths, (first, second), strict=True):
            record.write(one, path)
        monkeypatch.setattr("sys.argv", ["compare.py", *map(str, paths)])
        assert compare.main() == status
    assert "slower" in capsys.readouterr().out


# ------------------------------------------------------------------------------------ targets


def verdicts(load, *results, **fields):
    return {
        v.target: (v.figure, v.limit, v.met)
        for v in load("targets").judge(made_up(*results, **fields))
    }


def test_ratios_are_judged_by_operator_and_length(load):
    value = "value, times torch.softmax"
    for one, limit in (
        (result(ratio=1.4), 1.5),
        (result(ratio=1.9, n=64), 2.0),
        (result(curve="normal", ratio=2.0), 2.5),
        (result("gradtopk", None, "auto", ratio=5.9, n=64), 6.0),
        (result("itertopk", None, None, ratio=31), 32.0),
        (result("wsoftmaxtopk", None, None, ratio=11, n=64, k=8), 12.0),
    ):
        assert verdicts(load, one) == {value: (one["ratio"], limit, True)}
        worse = {**one, "ratio": limit + 0.1}
        assert verdicts(load, worse) == {value: (limit + 0.1, limit, False)}
    assert not verdicts(load, result(n=128), result(curve="entmax"), result(method="bisect"))


def test_low_temperatures_have_a_line_of_their_own(load):
    spread, peer = {"data": "spread 100"}, ("torch.topk", None, None)
    found = verdicts(load, result(ratio=2.0, **spread), result(*peer, ratio=8.0, **spread))
    assert found == {
        "value, times torch.softmax, at low temperatures": (2.0, 1.5, False),
        "value, times torch.topk, at low temperatures": (0.25, 1.0, True),
    }


def test_derivatives_are_judged_after_the_value(load):
    found = verdicts(load, result(what="pullback", ratio=1.6))
    assert found == {"pullback after the value, times softmax's backward pass": (1.6, 1.5, False)}
    found = verdicts(load, result(what="jvp", ratio=3.0, after_value=1.4))
    assert found == {"jvp after the value, times softmax's backward pass": (1.4, 1.5, True)}


def test_baselines_on_the_same_array(load):
    found = verdicts(
        load,
        result(ratio=1.5),
        result("torch.topk", None, None, ratio=3.0),
        result(method="scan", ratio=50.0),
        result("LapSum (sort)", "laplace", None, ratio=25.0),
        result("LapSum (sort)", "laplace", None, ratio=25.0, n=4096),
    )
    assert found["value, times torch.topk"] == (0.5, 1.0, True)
    assert found["scan, times LapSum by sorting"] == (2.0, 1.0, False)


def test_growth_latency_startup_and_footprint(load):
    over = {"over_n": 10**6, "over_k": 1000}
    found = verdicts(
        load,
        result(rows=1, n=64, k=8, ratio=10.0, seconds=1e-5),
        growth=[
            {**result(rows=1, n=10**6, k=16, ratio=0.8), **over},
            {**result(rows=1, n=10**6, k=1, ratio=1.2), **over},
            {**result(rows=1, n=10**7, k=1000, ratio=11.0), **over},
        ],
        ordinary=[
            {**result(rows=9, n=9, ratio=1.5), "use": "random mask"},
            {**result(rows=9, n=9, ratio=1.5, what="potential"), "use": "plain"},
        ],
        startup={"import softtopk_nb over numba": 0.5, "import numba": 1.0},
        footprint=[
            {
                "operator": "thretopk",
                "what": "value",
                "rows": 1,
                "n": 10**7,
                "k": 1000,
                "itemsize": 4,
                "extra_bytes": 10**8,
                "speedup": 1.9,
            }
        ],
    )
    assert found["flat in k"] == (pytest.approx(1.5), 1.3, False)
    assert found["linear in n"] == (11.0, 12.0, True)
    assert found["random mask, in plain calls"] == (1.5, 2.0, True)
    assert found["potential, in plain calls"] == (1.5, 1.3, False)
    assert found["a call on 1 x 64, in seconds"] == (1e-5, 20e-6, True)
    assert found["startup, in seconds"] == (0.5, 0.3, False)
    assert found["memory beyond input and output, in bytes"][2] is False
    assert found["one row with all threads, over one"] == (1.9, 1.4, True)


def test_a_device_has_targets_of_its_own(load):
    device = {"device": "cuda", "rows": 65536, "n": 4096, "of_copy": 0.5}
    found = verdicts(load, result(ratio=1.2, **device))
    assert found["value, times torch.softmax"] == (1.2, 1.3, True)
    assert found["part of the bandwidth of a copy"] == (0.5, 0.7, False)
    assert not verdicts(load, result(**{**device, "n": 10**6}), result(what="jvp", **device))


def test_the_table_says_which_are_met(load):
    text = load("targets").table(made_up(result(ratio=1.0), result(curve="exp", ratio=9.0)))
    assert "made up (Made-Up), none, 2 threads, 2000-01-01" in text
    assert "at most 1.5     NOT MET" in text
    assert text.endswith("1 met, 1 NOT MET")
    device = {**MADE_UP["machine"], "device": "cuda", "gpu": "made-up GPU"}
    assert load("targets").table(made_up(machine=device)).startswith("made-up GPU, 2000-01-01")


def test_the_newest_file_is_the_last_and_fullest_of_the_last_day(load, tmp_path, monkeypatch):
    record, targets = load("record"), load("targets")
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="no results yet"):
        targets.newest()
    for name, date, time, ratios in (
        ("z", "2000-01-01", "23:00", [1.0, 2.0, 3.0]),
        ("a", "2000-01-02", "11:00", [4.0, 5.0]),
        ("b", "2000-01-02", "12:00", [6.0]),
        ("c", "2000-01-02", "10:00", [7.0, 8.0]),
        ("d", "2000-01-02", None, [9.0, 10.0]),  # older files lack the time
    ):
        results = [result(ratio=ratio, k=i + 1) for i, ratio in enumerate(ratios)]
        when = {"date": date, **({"time": time} if time else {})}
        record.write(made_up(*results, **when), tmp_path / f"{name}.json")
    assert [one["ratio"] for one in targets.newest()["results"]] == [4.0, 5.0]


# ------------------------------------------------------------------------------------- others


def test_memory_that_a_call_needs_raises_the_peak(load):
    pytest.importorskip("resource", reason="the peak of a process is asked for the POSIX way")
    footprint = load("footprint")
    ballast, before = footprint.fill(), footprint.peak()
    needed = np.ones(20 * 2**20, np.uint8)
    assert 0.9 * needed.nbytes < footprint.peak() - before < 1.2 * needed.nbytes
    del ballast


def test_log_domain_is_gradtopk(load, rng):
    x = rng.normal(size=40)
    p = load("log_domain").marginals(x, 7)
    np.testing.assert_allclose(p, stk.gradtopk(x, 7), rtol=0, atol=1e-11)


@pytest.mark.torch
@pytest.mark.parametrize(("T", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("k", [1, 7.5, 20, 39])
def test_lml_is_thretopk_with_sigmoid(load, rng, T, tolerance, k):
    """id-lml."""
    torch = pytest.importorskip("torch")
    lml = load("lml")
    for scale in (0.01, 1.0, 40.0):
        x = (scale * rng.normal(size=(20, 40)) + 5).astype(T)
        x[0] = 1.0
        leaf = torch.from_numpy(x).requires_grad_()
        p = lml.soft_topk(leaf, k)
        expected, pullback = stk.thretopk.vjp(x, k, curve="sigmoid")
        atol = tolerance * (1 + scale)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=atol)
        g = rng.normal(size=x.shape).astype(T)
        (gx,) = torch.autograd.grad(p, leaf, torch.from_numpy(g))
        np.testing.assert_allclose(gx.numpy(), pullback(g).x, atol=100 * atol, rtol=1e-3)


@pytest.mark.torch
def test_every_case_can_be_called(load):
    pytest.importorskip("torch")
    cases, contenders = load("cases"), load("contenders")
    for case in cases.select("quick"):
        rows = 1 if case.rows == 1 else 3
        small = case._replace(rows=rows, n=40, k=min(case.k, 5))
        x = cases.scores(rows, 40, small.dtype, small.data)
        found = contenders.call(small, x)()
        contenders.unit(small.what, x)()
        sums_to_k = case.operator in ("LapSum (sort)", "LML (bracketing)", "entmax budget_bisect")
        if small.what == "value" and sums_to_k:
            expected = stk.thretopk(x, small.k, curve=small.curve)
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


@pytest.mark.torch
def test_comparison_table_of_the_readme_is_the_printed_one(load):
    """All columns but the last, which is measured."""
    pytest.importorskip("torch")
    readme = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    for line in load("alternatives").table({}):
        beginning = line.rsplit("|", 2)[0]
        assert any(written.startswith(beginning) for written in readme), beginning
