"""Packages that complete tensors, or can be made to: one pass, and whole runs towards an error.

pyttb and GenTen take absent cells as zeros. Both can be told not to: pyttb by a sampler of its nonzeros,
GenTen by weighing zeros with 0. They are measured that way, since anything else does not complete a tensor.
"""

import numpy as np
from timing import Pass, clock


def tensorly_run(shape, indices, values, rank, iterations, seed=0):
    """Masked CP over all cells of the dense tensor; there is no sparse way in TensorLy."""
    from tensorly.decomposition import parafac

    dense, mask = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    dense[tuple(indices.T)], mask[tuple(indices.T)] = values, 1.0
    # a tolerance that is never met: with 0, TensorLy takes a way that needs far more memory
    return lambda: parafac(dense, rank, n_iter_max=iterations, init="random", mask=mask, tol=1e-30, random_state=seed)


def pyttb_tensor(shape, indices, values):
    import pyttb

    return pyttb.sptensor(np.ascontiguousarray(indices), np.asarray(values, np.float64)[:, None], tuple(shape))


class Observed:
    """Samples of the observed entries alone, for pyttb.

    Its own samplers, asked for no zeros at all, still search all entries in every step to tell zeros apart; that takes
    nine tenths of the time.
    """

    crng = np.array([], dtype=int)

    def __init__(self, count):
        self.count = count

    def gradient_sample(self, tensor):
        from pyttb.gcp.samplers import nonzeros

        return *nonzeros(tensor, self.count), np.full(self.count, tensor.nnz / self.count)

    function_sample = gradient_sample


def pyttb_run(tensor, rank, batch, epochs, rate, seed=0):
    """GCP by Adam on samples of the observed entries; returns factors, weights and the seconds of its epochs."""
    import pyttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import Adam

    np.random.seed(seed)  # noqa: NPY002 - pyttb draws from NumPy's global state
    steps = -(-tensor.nnz // batch)
    # its rule, an epoch that did not improve is undone, stops early on so few samples
    adam = Adam(rate=rate, epoch_iters=steps, max_iters=epochs + 1, max_fails=10**6, printitn=0)
    sampler = Observed(min(batch, tensor.nnz))
    model, _, info = pyttb.gcp_opt(tensor, rank, Objectives.GAUSSIAN, adam, sampler=sampler, printitn=0)
    trace = info["time_trace"]  # its last epoch is not in it
    return model.factor_matrices, model.weights, float(trace[-1] - trace[0])


def genten_run(tensor, rank, batch, epochs, rate, seed=0):
    """GCP by Adam, C++ and OpenMP; returns factors, weights and the seconds of its epochs by its own clock."""
    import pygenten

    count = min(batch, tensor.nnz)
    model, _, history = pygenten.gcp_sgd(
        tensor, rank=rank, rate=rate, maxiters=epochs, epoch_iters=-(-tensor.nnz // batch), printitn=0, seed=seed + 1,
        num_samples_nonzeros_grad=count, num_samples_nonzeros_value=count,
        num_samples_zeros_grad=1, num_samples_zeros_value=1, w_g_z=0.0, w_f_z=0.0,
    )  # fmt: skip
    clocks = [history.getEntry(k).cum_time for k in range(history.size())]
    return model.factor_matrices, model.weights, float(clocks[-1] - clocks[0])


def one_epoch(run, shape, indices, values, rank, batch):
    """A pass of pyttb or GenTen by its own clock, which leaves out what it does once."""
    tensor = pyttb_tensor(shape, indices, values)

    def one() -> Pass:
        found: list[float] = []
        whole = clock(lambda: found.append(run(tensor, rank, batch, 1, 0.001)[2]))
        return Pass(found[0], whole.cores)

    return one
