"""What one writes by hand in PyTorch: CP by Adam with three ways to batch, and JULIA by slices."""

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Cp(torch.nn.Module):
    """One table per mode, a product, a sum."""

    def __init__(self, shape, rank):
        super().__init__()
        self.tables = torch.nn.ParameterList(torch.nn.Parameter(0.3 * torch.randn(size, rank)) for size in shape)

    def forward(self, indices):
        rows = [table.index_select(0, indices[:, n]) for n, table in enumerate(self.tables)]
        return torch.stack(rows).prod(dim=0).sum(dim=1)


class Julia(torch.nn.Module):
    """CP plus a network over rows of its own, two flows and a gate: the paper's model as written."""

    def __init__(self, shape, rank, width):
        super().__init__()
        self.linear = Cp(shape, rank)
        self.tables = torch.nn.ParameterList(torch.nn.Parameter(0.3 * torch.randn(size, width)) for size in shape)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(len(shape) * width, width**2), torch.nn.ReLU(),
            torch.nn.Linear(width**2, width), torch.nn.ReLU(),
        )  # fmt: skip
        self.gate = torch.nn.Parameter(torch.full((width,), 0.5))
        self.head = torch.nn.Linear(width, 1)

    def forward(self, indices):
        rows = [table.index_select(0, indices[:, n]) for n, table in enumerate(self.tables)]
        product = torch.stack(rows).prod(dim=0).relu()
        blended = self.gate * product + (1 - self.gate) * self.mlp(torch.cat(rows, dim=1))
        return self.linear(indices) + self.head(blended).relu().squeeze(1)


class Trainer:
    """A model, Adam, and a pass over entries in memory."""

    def __init__(self, model, indices, values, batch, lr=0.005):
        self.model, self.batch = model, batch
        self.indices, self.values = torch.as_tensor(indices), torch.as_tensor(values)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, indices, values):
        loss = (self.model(indices) - values).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def sliced(self):
        """Permuted once, sliced into batches."""
        order = torch.randperm(len(self.values))
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            self.step(self.indices[chosen], self.values[chosen])

    def batched(self):
        """DataLoader with a batch sampler: it fetches whole batches."""
        data = TensorDataset(self.indices, self.values)
        sampler = BatchSampler(RandomSampler(data), self.batch, drop_last=False)
        for indices, values in DataLoader(data, sampler=sampler, batch_size=None):
            self.step(indices, values)

    def plain(self):
        """DataLoader as the tutorials have it: it fetches entry by entry. A straw man."""
        data = TensorDataset(self.indices, self.values)
        for indices, values in DataLoader(data, batch_size=self.batch, shuffle=True):
            self.step(indices, values)
