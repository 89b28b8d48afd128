"""Parts with random weights, and their layers in NumPy, one entry at a time."""

import numpy as np
import torch


def random_part(kind, n_modes, width, seed=0, **options):
    """A part in 64 bits and eval mode, all its parameters and running figures drawn at random."""
    part = kind(n_modes, width, **options).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in part.state_dict().items():
            if value.is_floating_point():
                drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                value.copy_(drawn.square() + 0.5 if name.endswith("running_var") else drawn)
    return part


def random_rows(batch, n_modes, width, seed=1):
    return torch.randn(batch, n_modes, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights_of(part):
    return {name: value.detach().numpy() for name, value in part.state_dict().items()}


def n_parameters(part):
    return sum(parameter.numel() for parameter in part.parameters())


def relu(x):
    return np.maximum(x, 0)


def linear(weights, name, x):
    """A dense layer, number by number: y_j = Σ_i W(j, i) x_i + b_j."""
    matrix, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.array([sum(matrix[j, i] * x[i] for i in range(len(x))) + bias[j] for j in range(len(bias))])


def assert_values(part, rows, one_entry, **options):
    """The part's values are those of ``one_entry(weights, entry)``, and not trivially so."""
    weights = weights_of(part)
    expected = np.array([one_entry(weights, entry, **options) for entry in rows.numpy()])
    assert len(set(expected.tolist())) > len(rows) // 4
    np.testing.assert_allclose(part(rows).detach().numpy(), expected, rtol=1e-10, atol=1e-12)
