"""The counter-based generator of the device: published answers, and its Gumbel numbers."""

import numpy as np
import pytest
from numba import njit
from scipy import stats

from softtopk_nb.softmax.cuda.philox import gumbel, philox, uniform32, uniform64

ONES = 0xFFFFFFFF

# Random123's kat_vectors for philox4x32 with 10 rounds: (counter, key, words).
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, ONES << 32 | ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0 << 32 | 0xA4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@njit
def compiled_words(key, counter):
    return philox(key, counter[0], counter[1], counter[2], counter[3])


@njit
def compiled_noise(seed, count, noise32, noise64):
    for i in range(count):
        a, b, c, d = philox(np.uint64(seed), np.uint64(i), np.uint64(7), np.uint64(0), np.uint64(0))
        noise32[i, 0], noise32[i, 1] = gumbel(uniform32(a)), gumbel(uniform32(b))
        noise32[i, 2], noise32[i, 3] = gumbel(uniform32(c)), gumbel(uniform32(d))
        noise64[i, 0], noise64[i, 1] = gumbel(uniform64(a, b)), gumbel(uniform64(c, d))


def noise(count, seed=3):
    noise32, noise64 = np.empty((count, 4), np.float32), np.empty((count, 2))
    compiled_noise(seed, count, noise32, noise64)
    return noise32, noise64


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_answers(counter, key, expected):
    words = np.array(counter, np.uint64)
    assert tuple(int(w) for w in philox(np.uint64(key), *words)) == expected
    assert compiled_words(np.uint64(key), words) == expected


def test_every_word_of_counter_and_key_counts():
    counter = np.array([1, 2, 3, 4], np.uint64)
    seen = {compiled_words(np.uint64(5), counter)}
    for j in range(4):
        other = counter.copy()
        other[j] += 1
        seen.add(compiled_words(np.uint64(5), other))
    seen.add(compiled_words(np.uint64(6), counter))
    seen.add(compiled_words(np.uint64(5 + 2**32), counter))
    assert len(seen) == 7


def test_python_and_compiled_noise_agree():
    noise32, noise64 = noise(20)
    for i in range(20):
        words = philox(np.uint64(3), np.uint64(i), np.uint64(7), np.uint64(0), np.uint64(0))
        low = [gumbel(uniform32(w)) for w in words]
        high = [gumbel(uniform64(*words[:2])), gumbel(uniform64(*words[2:]))]
        assert {type(v) for v in low} == {np.float32}
        assert {type(v) for v in high} == {np.float64}
        np.testing.assert_allclose(noise32[i], low, rtol=1e-6, atol=3e-7)
        np.testing.assert_allclose(noise64[i], high, rtol=1e-14, atol=1e-15)


def test_ends_of_the_range():
    """The largest noise comes from a word of 0; the smallest is finite, though u rounds to 1."""
    zero, ones = np.uint64(0), np.uint64(ONES)
    assert uniform32(zero) == np.float32(2.0**-33)
    assert uniform32(ones) == 1
    assert uniform64(zero, zero) == 2.0**-54
    assert uniform64(ones, ones) == 1
    assert gumbel(uniform32(zero)) == pytest.approx(33 * np.log(2), rel=1e-6)
    assert gumbel(uniform64(zero, zero)) == pytest.approx(54 * np.log(2), rel=1e-14)
    assert gumbel(uniform32(ones)) == pytest.approx(-np.log(24 * np.log(2)), rel=1e-6)
    assert gumbel(uniform64(ones, ones)) == pytest.approx(-np.log(53 * np.log(2)), rel=1e-14)
    # Neighbouring words differ where it matters: in float32 too, up to the largest numbers.
    assert gumbel(uniform32(np.uint64(1))) < gumbel(uniform32(zero)) - 1


def test_distribution_of_the_noise():
    """Standard Gumbel: by its distribution function, in all lanes, without correlation."""
    for values in noise(50_000):
        flat = values.ravel().astype(np.float64)
        assert np.unique(flat).size > 0.99 * flat.size
        u = np.exp(-np.exp(-flat))
        counts = np.bincount((u * 50).astype(int), minlength=50)
        assert counts.size == 50
        assert stats.chisquare(counts).pvalue > 1e-4
        # Right tail, which decides maxima.
        tail = np.sum(flat > 8)
        expected = flat.size * -np.expm1(-np.exp(-8.0))
        assert abs(tail - expected) < 4 * np.sqrt(expected)
        for a in range(values.shape[1]):
            for b in range(a):
                assert abs(np.corrcoef(values[:, a], values[:, b])[0, 1]) < 4 / np.sqrt(50_000)
        assert abs(np.corrcoef(values[1:, 0], values[:-1, 0])[0, 1]) < 4 / np.sqrt(50_000)
        assert stats.chisquare(np.bincount((u**2 * 50).astype(int), minlength=50)).pvalue < 1e-4


@pytest.mark.ptx
# The largest group that holds float32 rows is compiled in tests/device/test_ptx.py.
@pytest.mark.parametrize("n", [20, 1024, 70_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_kernels_keep_noise_in_registers(dtype, n):
    import ptx

    from softtopk_nb.softmax.cuda.noise import group_for, make_draw, make_perturb

    group = group_for(n, dtype)
    vectors = group.held * np.dtype(dtype).itemsize // 16
    for kernel in (make_draw(dtype, group), make_perturb(dtype, group, False)):
        report = ptx.report(kernel)
        assert report.registers * group.threads <= 65536
        assert report.stack == report.spilled == 0
        assert not report.count(r"\.local\b")
        assert report.wide("LDG") >= vectors
    if dtype is np.float32 and group.lanes <= 32:
        # k and the temperature are parameters in float64; perturb computes with neither.
        assert ptx.doubles(report.ptx) == report.count(r"\.param \.f64\b")
