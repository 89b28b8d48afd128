"""Cases that need no run folder: row solves, blocks, engines, baselines, splits, files, the estimator."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import torch

from jointensor import SparseTensor, TensorCompleter, read_tensor, split, write_tensor
from jointensor.data.frames import TableSpec
from jointensor.evaluation.evaluate import MIN_CALIBRATION_ENTRIES
from jointensor.kernels import ModeView, RowEntries, pick_engine
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import fit_tables
from jointensor.solvers.als import Als
from jointensor.solvers.systems import SystemsInMemory
from tests.soak.tensors import as_cells, random_cells, random_shape, random_tensor

NETWORKS = ("julia", "julia,gate=sigmoid", "costco", "avocado", "neurtn", "neptune", "mlp")


def close(found: np.ndarray, expected: np.ndarray, share: float, what: str, least: float = 1e-30) -> None:
    """Assert that no number differs by more than a share of the largest, or of ``least`` if all are smaller."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"{what}: {found.shape} and {expected.shape}"
    assert np.isfinite(found).all(), f"{what}: not finite"
    off = np.abs(found - expected).max(initial=0.0)
    size = np.abs(expected).max(initial=0.0)
    assert off <= share * max(size, least), f"{what}: off by {off:.3g} where values go up to {size:.3g}"


def rows(rng: np.random.Generator, _: Path) -> str:
    """Row solves of every engine are the least squares of NumPy in 64 bits; the order of entries does not matter."""
    shape = random_shape(rng, 30)
    indices = torch.as_tensor(random_cells(rng, shape, int(rng.choice((5, 60, 600)))))
    mode, rank, sums = int(rng.integers(len(shape))), int(rng.integers(1, 7)), bool(rng.random() < 0.3)
    scale = float(rng.choice((1e-6, 1.0, 1.0, 1e6)))
    others = [m for m in range(len(shape)) if m != mode]
    tables = [torch.as_tensor(rng.normal(size=(shape[m], rank)), dtype=torch.float32) for m in others]
    targets = torch.as_tensor(scale * rng.normal(size=len(indices)), dtype=torch.float32)
    weights = torch.as_tensor(rng.random(len(indices)) + 0.1, dtype=torch.float32) if rng.random() < 0.5 else None
    ridge = torch.as_tensor(rng.uniform(0.3, 3, size=shape[mode]), dtype=torch.float32)
    prior = torch.as_tensor(scale * rng.normal(size=(shape[mode], rank)), dtype=torch.float32)
    prior = prior if rng.random() < 0.5 else None
    expected, values = _least_squares(indices, mode, others, tables, targets, weights, ridge, prior, sums=sums)
    for engine in ("reference", "numba"):
        for order in (torch.arange(len(indices)), torch.as_tensor(rng.permutation(len(indices)))):
            view = ModeView.of(indices[order], mode, others, shape[mode])
            table = torch.zeros(shape[mode], rank)
            weighed = None if weights is None else weights[order]
            entries = RowEntries(view, tables, targets[order], weighed, sums)
            found = pick_engine(engine, "cpu").solve_rows(entries, ridge, table, prior=prior)
            close(table.numpy(), expected, 2e-3, f"rows by {engine}")
            close(found.numpy(), values[order.numpy()], 2e-3, f"values by {engine}")
    return f"rows {'sums' if sums else 'products'}"


def _least_squares(indices, mode, others, tables, targets, weights, ridge, prior, *, sums):
    """Every row by a general least-squares routine in 64 bits; the ridge is written as further equations."""
    looked_up = [table.double().numpy()[indices[:, m].numpy()] for m, table in zip(others, tables, strict=True)]
    h = np.sum(looked_up, axis=0) if sums else np.prod(looked_up, axis=0)
    root = np.ones(len(indices)) if weights is None else np.sqrt(weights.double().numpy())
    solved = np.zeros((len(ridge), h.shape[1]))
    for row in range(len(ridge)):
        mine, more = (indices[:, mode] == row).numpy(), np.sqrt(float(ridge[row]))
        drawn = np.zeros(h.shape[1]) if prior is None else prior[row].double().numpy()
        left = np.vstack([h[mine] * root[mine, None], more * np.eye(h.shape[1])])
        right = np.concatenate([targets.double().numpy()[mine] * root[mine], more * drawn])
        solved[row] = np.linalg.lstsq(left, right, rcond=None)[0]
    return solved, (h * solved[indices[:, mode].numpy()]).sum(axis=1)


def blocks(rng: np.random.Generator, folder: Path) -> str:
    """g by hand, entry by entry; the model is g + f; saving and loading gives the same bits."""
    shape = random_shape(rng, 9)
    spec = "+".join(
        piece
        for piece in ("mean", "bias", f"cp:{rng.integers(1, 4)}", "pairs:2", "fm:3", "tables", "tucker:2")
        if rng.random() < 0.5
    )
    width = int(rng.integers(1, 5)) if rng.random() < 0.5 or not spec else 0
    model = JointModel(shape, (0, width), linear=spec, nonlinear=str(rng.choice(NETWORKS))).eval()
    indices = torch.as_tensor(random_cells(rng, shape, 80))
    model.multilinear and model.multilinear.see(indices[: len(indices) // 2 + 1])
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator)
                value.copy_(drawn.square() + 0.5 if name.endswith("running_var") else drawn)
        values = model(indices).numpy()
        f = torch.zeros(len(indices)) if model.nonlinear is None else model.nonlinear(indices)
    g = np.zeros(len(indices)) if model.multilinear is None else _by_hand(model.multilinear, indices.numpy())
    size = max(np.abs(g).max(initial=0), f.abs().max().item())
    assert np.abs(values - (g + f.numpy())).max() <= 1e-4 * size, f"g + f of {spec} with {model}"
    tensor = SparseTensor(indices.numpy(), values / max(size, 1e-30), shape)
    predictor = JointPredictor(model, fit_bias(tensor, tensor.take(np.arange(0))))
    save_predictor(predictor, folder / "model.safetensors")
    loaded = load_predictor(folder / "model.safetensors")
    asked = np.stack([rng.integers(-1, size + 1, size=50) for size in shape], axis=1)
    np.testing.assert_array_equal(loaded.predict(asked), predictor.predict(asked))
    return "blocks with f" if width else "blocks"


def _by_hand(g: Multilinear, indices: np.ndarray) -> np.ndarray:
    state = {name: value.detach().double().numpy() for name, value in g.state_dict().items()}
    total = np.zeros(len(indices))
    for name, block in g.blocks.items():
        own = {key.removeprefix(f"blocks.{name}."): value for key, value in state.items() if f"blocks.{name}." in key}
        for e, cell in enumerate(indices):
            if name == "mean":
                total[e] += own["constant"]
            elif name == "tucker":
                rest = own["core"]
                for n, i in enumerate(cell):
                    rest = np.tensordot(own[f"factors.{n}"][i], rest, axes=(0, 0))
                total[e] += rest
            elif name.startswith("table_"):
                key = 0
                for n, size in zip(block.modes, block.sizes, strict=True):
                    key = key * size + int(cell[n])
                total[e] += sum(own["effects"][:-1, 0][own["keys"] == key])
            else:
                places = np.cumsum([0, *block.factors.sizes])
                looked_up = [own["factors.stacked"][places[k] + cell[n]] for k, n in enumerate(block.modes)]
                if name == "fm":
                    total[e] += sum(float(a @ b) for a, b in combinations(looked_up, 2))
                else:
                    total[e] += np.prod(looked_up, axis=0).sum()
    return total


def engines(rng: np.random.Generator, _: Path) -> str:
    """One exact sweep gives the same values by every engine, and for every order of the entries."""
    tensor, _kind = random_tensor(rng, most=400, values="reals")
    spec = "+".join(piece for piece in ("mean", "bias", "cp:2", "pairs:2", "fm:2") if rng.random() < 0.6) or "bias"
    start = Multilinear(tensor.shape, spec)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    for parameter in start.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    ridge, found = float(rng.choice((0.03, 0.3))), []
    for engine, order in (
        ("reference", np.arange(len(tensor))),
        ("numba", np.arange(len(tensor))),
        ("reference", rng.permutation(len(tensor))),
    ):
        g = Multilinear(tensor.shape, spec)
        g.load_state_dict(start.state_dict())
        kernels = pick_engine(engine, "cpu")
        indices, values = torch.tensor(tensor.indices[order]).long(), torch.tensor(tensor.values[order])
        als = Als(g, SystemsInMemory(g, indices, kernels), spread=1.0)
        als.ridge, als.pull = ridge, 5.0
        als.sweep(values)
        close(als.total().numpy(), g(indices).detach().numpy(), 1e-3, f"{spec}: values kept", 1.0)
        found.append(g(torch.tensor(tensor.indices).long()).detach().numpy())
    close(found[1], found[0], 5e-3, f"a sweep of {spec} by numba", 1.0)
    close(found[2], found[0], 5e-3, f"a sweep of {spec}, entries in another order", 1.0)
    return "engines"


def baselines(rng: np.random.Generator, _: Path) -> str:
    """Biases and tables: entries in another order, values times a power of two, labels never seen."""
    tensor, kind = random_tensor(rng, most=150)
    parts = split(tensor, seed=int(rng.integers(100)))
    make = fit_bias if rng.random() < 0.5 else fit_tables
    fitted = make(parts.train, parts.valid)
    asked = np.stack([rng.integers(-1, size + 1, size=60) for size in tensor.shape], axis=1)
    expected = fitted.predict(asked)
    assert np.isfinite(expected).all(), f"{kind}: not finite"
    shuffled = parts.train.take(rng.permutation(len(parts.train)))
    close(make(shuffled, parts.valid).predict(asked), expected, 1e-4, f"{kind}: entries in another order")
    if kind not in ("extreme", "vanishing"):
        scaled = [part.with_values(part.values * 4) for part in (parts.train, parts.valid)]
        close(make(*scaled).predict(asked), 4 * expected, 1e-5, f"{kind}: values times four")
    nobody = np.full((1, tensor.n_modes), -1)
    close(fitted.predict(nobody), np.array([fitted.mean]), 1e-12, "labels that nobody saw")
    return f"baselines {make.__name__}"


def splits(rng: np.random.Generator, _: Path) -> str:
    """Splits are disjoint, complete and repeatable; the standard one by NumPy alone."""
    tensor, _kind = random_tensor(rng, most=300)
    kind = str(rng.choice(("standard", "first", "time", "slices", "group")))
    some = [str(name) for name in rng.permutation(tensor.mode_names)[: rng.integers(1, tensor.n_modes + 1)]]
    argument = {"standard": "", "first": f":{rng.integers(1, len(tensor) + 1)}", "group": f":{','.join(some)}"}
    rule = kind + argument.get(kind, f":{some[0]}")
    test, valid, seed = float(rng.choice((0, 0.1, 0.2, 0.5))), float(rng.choice((0, 0.1, 0.3))), int(rng.integers(1000))
    parts = split(tensor, rule=rule, test=test, valid=valid, seed=seed)
    cells = [as_cells(part) for part in (parts.train, parts.valid, parts.test)]
    assert sum(map(len, cells)) == len(tensor), f"{rule}: entries were lost or doubled"
    assert cells[0] | cells[1] | cells[2] == as_cells(tensor), f"{rule}: other entries"
    again = split(tensor, rule=rule, test=test, valid=valid, seed=seed)
    for one, other in zip((parts.train, parts.valid, parts.test), (again.train, again.valid, again.test), strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
    if rule == "standard" and (test, valid) == (0.2, 0.1):
        p = np.random.default_rng(seed).permutation(len(tensor))
        held, rest = p[: len(p) // 5], p[len(p) // 5 :]
        np.testing.assert_array_equal(parts.test.indices, tensor.indices[held])
        np.testing.assert_array_equal(parts.valid.indices, tensor.indices[rest[: len(rest) // 10]])
        np.testing.assert_array_equal(parts.train.indices, tensor.indices[rest[len(rest) // 10 :]])
    _whole_groups(rule, tensor, parts)
    return f"splits {kind}"


def _whole_groups(rule: str, tensor: SparseTensor, parts) -> None:
    """Labels, or groups of labels, that must be in one part are in one part."""
    kind, _, argument = rule.partition(":")
    if kind == "first":
        assert as_cells(parts.test) == as_cells(tensor.take(np.arange(int(argument), len(tensor))))
    if kind not in ("time", "slices", "group"):
        return
    columns = [tensor.mode(name) for name in argument.split(",")]
    sides = [{tuple(row) for row in part.indices[:, columns].tolist()} for part in (parts.train, parts.valid, parts.test)]  # fmt: skip # noqa: E501
    assert not sides[2] & (sides[0] | sides[1]), f"{rule}: labels on both sides"
    assert kind != "group" or not sides[0] & sides[1], f"{rule}: groups to train and to validate by"
    if kind == "time" and sides[2]:
        mode = tensor.modes[columns[0]]
        where = np.arange(mode.size) if mode.labels is None else mode.coordinates()
        assert max(where[i] for (i,) in sides[0]) <= min(where[i] for (i,) in sides[2]), f"{rule}: the future trains"


ENDINGS = ("csv", "tsv", "txt", "parquet", "arrow", "feather", "jsonl", "npz", "tns", "tns.gz")


def files(rng: np.random.Generator, folder: Path) -> str:
    """A tensor that is written and read has the same value in every cell, bit for bit."""
    tensor, _kind = random_tensor(rng)
    ending = str(rng.choice(ENDINGS))
    write_tensor(tensor, folder / f"t.{ending}")
    table = not ending.startswith(("npz", "tns"))
    spec = TableSpec.of(list(tensor.mode_names), "value") if table else None
    again = read_tensor(folder / f"t.{ending}", spec).tensor
    assert as_cells(again) == as_cells(tensor), f"{ending}: other cells"
    assert again.mode_names == tensor.mode_names or ending.startswith("tns")
    if ending == "npz":
        np.testing.assert_array_equal(again.indices, tensor.indices)
        assert again.modes == tensor.modes
    if table:
        frame = tensor.to_frame()
        other = SparseTensor.from_frame(frame[rng.permutation(frame.height)], list(tensor.mode_names), "value")
        np.testing.assert_array_equal(other.indices, again.indices)
        np.testing.assert_array_equal(other.values, again.values)
        assert [mode.labels for mode in other.modes] == [mode.labels for mode in again.modes]
    return f"files {ending}"


def intervals(rng: np.random.Generator, _: Path) -> str:
    """Limits in order, higher levels around lower ones, and at least the level on the calibration entries."""
    shape = random_shape(rng)
    indices = random_cells(rng, shape, int(rng.choice((20, 60, 400, 1500))))
    if len(indices) < MIN_CALIBRATION_ENTRIES:
        return "intervals of too few"
    n = len(indices)
    predicted = rng.normal(size=n) * rng.choice((1e-20, 1.0, 1e20))
    noise = rng.standard_t(2, size=n) if rng.random() < 0.5 else rng.choice((0.0, 0.0, 1.0, -1.0), size=n)
    residuals = noise * np.abs(predicted).mean() * rng.choice((0.0, 0.1, 10.0))
    unseen = rng.random(n) < rng.choice((0.0, 0.2))
    made = calibrate(HeldOut(indices, predicted, residuals, unseen), shape, seed=int(rng.integers(100)))
    levels = np.sort(rng.uniform(0.01, 0.99, size=4))
    ends = [made.interval(indices, predicted, float(level), unseen) for level in levels]
    for inner, outer in pairwise(ends):
        assert (outer[:, 0] <= inner[:, 0]).all(), "intervals that are not nested"
        assert (outer[:, 1] >= inner[:, 1]).all(), "intervals that are not nested"
    for one in ends:
        assert np.isfinite(one).all(), "an end that is not finite"
        assert (one[:, 0] <= one[:, 1]).all(), "ends that are not in order"
    return "intervals"


def estimator(rng: np.random.Generator, _: Path) -> str:
    """Rows in another order, labels as numbers or text, and labels one by one give the same predictions."""
    tensor, _kind = random_tensor(rng, most=120, labels=str(rng.choice(("text", "codes", "odd"))))
    cells = as_cells(tensor)
    X, y = np.array(list(cells), dtype=object), np.array(list(cells.values()))
    options = {"rank": (int(rng.integers(1, 3)), int(rng.choice((0, 2)))), "random_state": int(rng.integers(100))}
    made = TensorCompleter(device="cpu", **options).fit(X, y)
    order = rng.permutation(len(X))
    other = TensorCompleter(device="cpu", **options).fit(X[order], y[order])
    np.testing.assert_array_equal(other.predict(X), made.predict(X))
    assert np.isfinite(made.predict(X)).all(), "not finite"
    strange = X[:1].copy()
    strange[0, 0] = "nobody"
    assert np.isfinite(made.predict(strange)).all()
    before = made.predict(X)
    new = X[: len(X) // 4 + 1].copy()
    new[:, int(rng.integers(X.shape[1]))] = "newcomer"
    _, first = np.unique(new.astype(str), axis=0, return_index=True)
    made.partial_fit(new[first], y[: len(new)][first])
    assert np.isfinite(made.predict(new)).all(), "not finite after partial_fit"
    close(made.predict(X), before, 1e-5, "entries of labels that were there before partial_fit")
    return "estimator"
