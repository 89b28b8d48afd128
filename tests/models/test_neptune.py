"""NePTuNe against its formulas: contraction, normalisation, dropout, its size and its limits."""

import numpy as np
import pytest
import torch

from jointensor.errors import ConfigError
from jointensor.models.nonlinear import Neptune
from tests.models.by_hand import assert_values, n_parameters, random_part, random_rows, weights_of

DROPOUTS = ("dropout_first", "dropout_core", "dropout_hidden")


def normalised(weights, name, x, mean=None, variance=None):
    """Batch normalisation, by its running figures unless others are given."""
    mean = weights[f"{name}.running_mean"] if mean is None else mean
    variance = weights[f"{name}.running_var"] if variance is None else variance
    return (x - mean) / np.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def contracted(core, entry):
    """Σ over all modes but the last, number by number."""
    n_modes, width = entry.shape
    made = np.zeros(width)
    for which in np.ndindex(*(width,) * (n_modes - 1)):
        made += core[which] * np.prod([entry[n, k] for n, k in enumerate(which)])
    return made


def one_entry(weights, entry, slope=0.01, norm=True):
    entry = entry.copy()
    last = entry[-1].copy()
    entry[0] = normalised(weights, "first.0", entry[0]) if norm else entry[0]
    hidden = contracted(weights["core"], entry)
    hidden = normalised(weights, "hidden.0", hidden) if norm else hidden
    hidden = np.where(hidden > 0, hidden, slope * hidden)
    score = sum(hidden[k] * last[k] for k in range(len(last)))
    return weights["head.weight"][0, 0] * score + weights["head.bias"][0]


@pytest.mark.parametrize("n_modes", [2, 3, 4, 5])
@pytest.mark.parametrize("norm", [True, False])
def test_value_is_the_formula(n_modes, norm):
    assert_values(random_part(Neptune, n_modes, 3, norm=norm), random_rows(12, n_modes, 3), one_entry, norm=norm)


def test_a_prelu_has_a_slope_that_is_learnt():
    part = random_part(Neptune, 3, 4, activation="prelu", seed=1)
    slope = part.hidden[2].weight.item()
    assert abs(slope - 0.25) > 0.1
    assert_values(part, random_rows(12, 3, 4), one_entry, slope=slope)
    assert Neptune(3, 4, activation="prelu").hidden[2].weight.item() == 0.25  # where it starts


def test_without_normalisation_or_activation_it_is_tuckers_model():
    part, rows = random_part(Neptune, 4, 3, norm=False, activation="identity"), random_rows(8, 4, 3)
    score = np.einsum("abcd,ia,ib,ic,id->i", part.core.detach().numpy(), *rows.numpy().transpose(1, 0, 2))
    expected = part.head.weight.item() * score + part.head.bias.item()
    np.testing.assert_allclose(part(rows).detach().numpy(), expected, rtol=1e-11, atol=1e-12)


def test_in_training_a_batch_is_normalised_by_its_own_figures_and_the_running_ones_follow():
    part, rows = random_part(Neptune, 3, 4).train(), random_rows(20, 3, 4)
    before = weights_of(random_part(Neptune, 3, 4))
    found = part(rows).detach().numpy()
    entries = rows.numpy().copy()
    first, last = entries[:, 0].copy(), entries[:, -1].copy()
    entries[:, 0] = normalised(before, "first.0", first, first.mean(axis=0), first.var(axis=0))
    hidden = np.stack([contracted(before["core"], entry) for entry in entries])
    hidden = normalised(before, "hidden.0", hidden, hidden.mean(axis=0), hidden.var(axis=0))
    score = (np.where(hidden > 0, hidden, 0.01 * hidden) * last).sum(axis=1)
    expected = before["head.weight"][0] * score + before["head.bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    after = weights_of(part)
    followed = 0.9 * before["first.0.running_mean"] + 0.1 * first.mean(axis=0)
    np.testing.assert_allclose(after["first.0.running_mean"], followed, rtol=1e-12)
    followed = 0.9 * before["first.0.running_var"] + 0.1 * first.var(axis=0, ddof=1)
    np.testing.assert_allclose(after["first.0.running_var"], followed, rtol=1e-12)


def test_in_training_a_batch_of_one_is_normalised_by_the_running_figures_and_leaves_them_alone():
    part, rows = random_part(Neptune, 3, 4), random_rows(1, 3, 4)
    expected, before = part(rows), {name: value.clone() for name, value in part.state_dict().items()}
    found = part.train()(rows)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in part.state_dict().items())
    found.sum().backward()
    assert part.first[0].weight.grad.abs().min() > 0  # it is still learnt


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_drops_its_share_in_training_and_nothing_in_prediction(name):
    options = {"norm": False, "activation": "identity"}
    part = Neptune(3, 1, **options, **{name: 0.3})  # one number everywhere: it is kept and scaled, or dropped
    with torch.no_grad():
        part.core.fill_(1.0)
        part.head.bias.fill_(5.0)
    rows = torch.ones(20_000, 3, 1)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        found = part.train()(rows)
    kept = found > 5.5
    torch.testing.assert_close(found[kept], torch.full((int(kept.sum()),), 5 + 1 / 0.7))
    torch.testing.assert_close(found[~kept], torch.full((int((~kept).sum()),), 5.0))
    assert abs(float(kept.double().mean()) - 0.7) < 4 * np.sqrt(0.3 * 0.7 / 20_000)  # four standard deviations
    assert part.eval()(rows).tolist() == [6.0] * 20_000


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_does_not_change_what_is_predicted(name):
    rows = random_rows(9, 4, 3)
    assert torch.equal(random_part(Neptune, 4, 3, **{name: 0.4})(rows), random_part(Neptune, 4, 3)(rows))


@pytest.mark.parametrize(("n", "k"), [(2, 5), (3, 20), (4, 3)])
def test_number_of_parameters(n, k):
    assert n_parameters(Neptune(n, k)) == k**n + 4 * k + 2  # core; weight and bias of two norms; w and ε
    assert n_parameters(Neptune(n, k, norm=False, activation="prelu")) == k**n + 1 + 2


@pytest.mark.parametrize(("n_modes", "most"), [(4, 56), (5, 25), (7, 10)])
def test_a_core_that_does_not_fit_is_refused_before_it_is_made(n_modes, most):
    with torch.device("meta"):  # shapes without memory
        assert Neptune(n_modes, most).core.numel() == most**n_modes
        with pytest.raises(ConfigError) as caught:
            Neptune(n_modes, most + 1)
    assert str(caught.value) == (
        f"neptune of width {most + 1} has a core of {(most + 1) ** n_modes:,} numbers over {n_modes} modes, "
        f"more than 10,000,000; give at most width {most}"
    )


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("share", [1, 1.5, -0.1, "half", None, float("nan"), True])
def test_shares_outside_0_to_1_are_refused(name, share):
    with pytest.raises(ConfigError) as caught:
        Neptune(3, 4, **{name: share})
    assert str(caught.value) == f"neptune: {name} is {share!r}, it must be a share from 0 to below 1"


@pytest.mark.parametrize("norm", ["no", 0, None])
def test_a_norm_that_is_neither_true_nor_false_is_refused(norm):
    with pytest.raises(ConfigError) as caught:
        Neptune(3, 4, norm=norm)
    assert str(caught.value) == f"neptune: norm is {norm!r}, it must be true or false"


def test_the_core_starts_at_a_size_that_keeps_the_size_of_values():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        part = Neptune(3, 30)
    assert abs(part.core.std().item() * 30 - 1) < 0.02
    assert (part.head.weight.item(), part.head.bias.item()) == (1.0, 0.0)  # the score as it is
