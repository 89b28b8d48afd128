import math
import tracemalloc

import numpy as np
import pytest

from jointensor.data.generate import NONLINEARITIES, SyntheticSpec, cell_chunks, generate
from jointensor.errors import ConfigError


def dense_cp(planted):
    letters = "abcde"[: len(planted.linear)]
    return np.einsum(",".join(f"{x}r" for x in letters) + f"->{letters}", *map(np.float64, planted.linear))


@pytest.mark.parametrize("shape", [(30, 40), (12, 9, 14), (6, 7, 5, 8), (4, 5, 3, 4, 5)])
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("skew", [0.0, 1.5])
def test_shape_count_and_no_cell_twice(shape, share, skew):
    entries = round(share * math.prod(shape))
    tensor, _ = generate(SyntheticSpec(shape, entries, rank=(2, 2), skew=skew, noise=0.1))
    assert tensor.shape == shape
    assert len(tensor) == len({tuple(cell) for cell in tensor.indices.tolist()}) == entries
    assert tensor.indices.dtype == np.int32


def test_values_are_the_planted_components_at_the_observed_cells():
    tensor, planted = generate(SyntheticSpec((8, 9, 10), 300, rank=(3, 0), seed=4))
    np.testing.assert_allclose(tensor.values, dense_cp(planted)[tuple(tensor.indices.T)], rtol=1e-5, atol=1e-5)


def test_planted_rank_is_the_rank_of_the_values():
    tensor, planted = generate(SyntheticSpec((20, 15, 12), 3600, rank=(3, 0)))  # every cell
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.indices.T)] = tensor.values
    for n in range(3):
        unfolded = np.moveaxis(dense, n, 0).reshape(tensor.shape[n], -1)
        scale = np.linalg.svd(unfolded, compute_uv=False)
        assert scale[2] > 1e-2 * scale[0]
        assert scale[3] < 1e-6 * scale[0]
        # the best fit of rank R lies in the span of the planted factors
        basis = np.linalg.qr(planted.linear[n].astype(float))[0]
        assert np.linalg.norm(unfolded - basis @ (basis.T @ unfolded)) < 1e-5 * np.linalg.norm(unfolded)


def test_planted_components_are_recovered_from_a_part_of_the_cells():
    tensor, planted = generate(SyntheticSpec((15, 16, 17), 1500, rank=(2, 0), seed=1))
    factors = [np.random.default_rng(0).standard_normal((size, 2)) for size in tensor.shape]
    for _ in range(200):  # alternating least squares, row by row
        for n in range(3):
            others = np.prod([factors[m][tensor.indices[:, m]] for m in range(3) if m != n], axis=0)
            for i in range(tensor.shape[n]):
                mine = tensor.indices[:, n] == i
                factors[n][i] = np.linalg.lstsq(others[mine], tensor.values[mine], rcond=None)[0]
    found = np.einsum("ar,br,cr->abc", *factors)
    truth = dense_cp(planted)
    assert np.linalg.norm(found - truth) < 1e-3 * np.linalg.norm(truth)  # the missing cells too


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_nonlinear_part_is_the_curve_of_the_added_rows(name):
    tensor, planted = generate(SyntheticSpec((10, 11, 12), 400, rank=(2, 3), nonlinearity=name, ratio=0.5))
    linear, bent = (np.zeros(400), np.zeros(400))
    for e, cell in enumerate(tensor.indices):
        linear[e] = sum(math.prod(float(planted.linear[n][i, r]) for n, i in enumerate(cell)) for r in range(2))
        rows = sum(planted.nonlinear[n][i].astype(float) for n, i in enumerate(cell)) / math.sqrt(3)
        bent[e] = NONLINEARITIES[name](rows).sum()
    np.testing.assert_allclose(tensor.values, linear + planted.nonlinear_scale * bent, rtol=1e-4, atol=1e-4)
    assert (planted.nonlinear_scale * bent).std() == pytest.approx(0.5 * linear.std(), rel=1e-4)


def test_noise_is_relative_to_the_values():
    clean, noisy = (generate(SyntheticSpec((40, 40, 40), 20_000, noise=noise))[0] for noise in (0.0, 0.5))
    np.testing.assert_array_equal(clean.indices, noisy.indices)
    assert (noisy.values - clean.values).std() == pytest.approx(0.5 * clean.values.std(), rel=0.03)


def test_skew_makes_some_labels_popular_as_zipf_says():
    flat, skewed = (generate(SyntheticSpec((1000, 800, 900), 50_000, skew=skew))[0] for skew in (0.0, 1.0))
    for n in range(3):
        even, steep = (np.sort(np.bincount(t.indices[:, n], minlength=800))[::-1] for t in (flat, skewed))
        assert even[0] < 3 * even.mean()
        assert steep[0] > 30 * steep.mean()
        slope = np.polyfit(np.log(np.arange(5, 101)), np.log(steep[4:100]), 1)[0]
        assert slope == pytest.approx(-1.0, abs=0.15)
    popular = np.bincount(skewed.indices[:, 0]).argmax()
    assert popular != 0  # which label is popular is drawn as well


def test_seed_decides_everything_and_only_the_seed():
    specs = (SyntheticSpec((50, 60, 70), 500, rank=(2, 2), skew=1, seed=seed) for seed in (0, 0, 1))
    first, again, other = (generate(spec)[0] for spec in specs)
    np.testing.assert_array_equal(first.indices, again.indices)
    np.testing.assert_array_equal(first.values, again.values)
    assert first.indices.tolist() != other.indices.tolist()


def test_enrons_shape_costs_a_few_times_its_entries():
    tracemalloc.start()
    tensor, _ = generate(SyntheticSpec((6066, 5699, 244_268, 1176), 500_000, rank=(2, 2), skew=1.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    factors = 4 * 4 * sum(tensor.shape) * 4
    blocks = 2**18 * 8 * 4 * 4
    assert peak < 8 * (tensor.indices.nbytes + tensor.values.nbytes) + factors + blocks


@pytest.mark.parametrize(
    ("shape", "skew"), [((10**9,) * 5, 0.0), ((10**6,) * 4, 40.0), ((10**6,) * 4, 1.2), ((3 * 10**9, 5), 0.0)]
)
def test_any_shape(shape, skew):
    cells = np.concatenate(list(cell_chunks(SyntheticSpec(shape, 1000, skew=skew))))
    assert len(np.unique(cells, axis=0)) == 1000
    assert (cells >= 0).all()
    assert (cells < np.array(shape)).all()


def test_every_cell_is_drawn_as_often_as_any_other_without_skew():
    counts = np.zeros((4, 4))
    for seed in range(2000):
        (cells,) = cell_chunks(SyntheticSpec((4, 4), 3, seed=seed))
        counts[tuple(cells.T)] += 1
    assert ((counts - 375) ** 2 / 375).sum() < 37.7  # 99.9 % of fifteen degrees of freedom


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (5,)}, "two sizes or more"),
        ({"shape": (5, 0, 3)}, "each at least 1"),
        ({"entries": 0}, "0 entries cannot be drawn from 60 cells"),
        ({"entries": 61}, "61 entries cannot be drawn from 60 cells"),
        ({"rank": (0, 0)}, "rank 0/0 has no components"),
        ({"nonlinearity": "tan"}, "did you mean 'tanh'"),
        ({"noise": -1.0}, "noise -1.0"),
        ({"skew": math.nan}, "skew nan"),
    ],
)
def test_specs_that_have_no_meaning(change, message):
    with pytest.raises(ConfigError, match=message):
        SyntheticSpec(**{"shape": (3, 4, 5), "entries": 10, **change})
