"""The contract of f, one function per promise; its docstring is shown to the user when the promise is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.overrides import TorchFunctionMode

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.base import find_nonlinear, nonlinear_parts
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import Table, Tables
from jointensor.training.init import initialise

Part = str | type[nn.Module] | Callable[[int, int], nn.Module]
"""A name with options, a class, or a function of the number of modes and the width."""

DRAWS = 100
"""Random parameters that are tried until f is not flat: a ReLU may be dead by chance, not always."""


@dataclass(frozen=True)
class Case:
    """What is checked: f alone, fed with rows, or in a joint model, fed with indices."""

    part: Part
    n_modes: int
    rank: tuple[int, int]
    alone: bool

    def __post_init__(self) -> None:
        if isinstance(self.part, nn.Module):
            raise ConfigError("an instance has one width and number of modes; give its class, or a function of both")

    @property
    def sizes(self) -> list[int]:
        """Labels of each mode of the tensor that a joint model is checked on."""
        return [(3, 4, 2)[n % 3] for n in range(self.n_modes)]

    def make(self) -> nn.Module:
        """What is checked, as it is before training."""
        return self.make_part() if self.alone else self.make_model()

    def make_part(self) -> nn.Module:
        """f."""
        if not isinstance(self.part, str | type):
            return self.part(self.n_modes, self.rank[1])
        kind, options = find_nonlinear(self.part)
        return kind(n_modes=self.n_modes, width=self.rank[1], **options)

    def make_model(self) -> JointModel:
        """The joint model, its factors drawn."""
        part: Any = self.part if isinstance(self.part, str | type) else self.make_part()
        model = JointModel(self.sizes, self.rank, nonlinear=part)
        for table in (*model.linear_factors, *model.nonlinear_factors):  # these share memory with the parameters
            nn.init.normal_(table)
        return model

    def inputs(self, batch: int) -> Tensor:
        """Rows ``(batch, modes, width)``, or indices ``(batch, modes)``."""
        if self.alone:
            return torch.randn(batch, self.n_modes, self.rank[1])
        return torch.stack([torch.randint(size, (batch,)) for size in self.sizes], dim=1)

    def cells(self) -> Tensor:
        """Indices of all cells, ``(cells, modes)``."""
        return torch.cartesian_prod(*map(torch.arange, self.sizes))

    def __str__(self) -> str:
        name = self.part if isinstance(self.part, str) else getattr(self.part, "__name__", type(self.part).__name__)
        return f"{name}, {self.n_modes} modes, {'width' if self.alone else f'rank {self.rank[0]} +'} {self.rank[1]}"


def shape(case: Case) -> None:
    """One finite number per entry, (batch, modes, width) → (batch,): a layer with one output needs squeeze(-1)."""
    expect_values(shaken(case.make())(case.inputs(7)), 7)


def batch_of_one(case: Case) -> None:
    """One entry is a batch too, in training as in prediction: squeeze the last dimension only, and let batch
    normalisation take its running figures where there is nothing to average over.
    """
    module, inputs = shaken(case.make()), case.inputs(7)
    expect_values(module.train()(inputs[:1]), 1)
    alone = module.eval()(inputs[:1])  # (1,)
    expect_values(alone, 1)
    expect_equal(alone, module(inputs)[:1], "the value of an entry alone and in a batch")


def own_entry_only(case: Case) -> None:
    """In eval mode a value depends on the entry's own rows, not on the rest of the batch or its order: reduce
    over dimensions 1 and 2, never over dimension 0.
    """
    module, inputs, order = shaken(case.make()).eval(), case.inputs(9), torch.randperm(9)
    values = module(inputs)  # (9,)
    expect_equal(module(inputs[order]), values[order], "the values of a batch and of the batch in another order")
    expect_equal(module(inputs[2:6]), values[2:6], "the values of a batch and of a part of it")


def same_seed(case: Case) -> None:
    """The same seed gives the same parameters, and eval mode has no randomness: draw in the constructor only,
    from torch's global state, and drop out by nn.Dropout.
    """
    inputs, made = case.inputs(7), []
    for _ in range(2):
        torch.default_generator.manual_seed(1)
        made.append(case.make().eval())
    expect_equal(made[0].state_dict(), made[1].state_dict(), "the parameters of two modules of one seed", rounding=0)
    expect_equal(made[0](inputs), made[0](inputs), "the values of one batch, asked for twice", rounding=0)
    expect_equal(made[0](inputs), made[1](inputs), "the values of two modules of one seed", rounding=0)


def gradient(case: Case) -> None:
    """Gradients of rows and parameters are those of the value, and not zero everywhere: no detach, no_grad,
    item, numpy, round or argmax on the way from rows to value.
    """
    module, inputs = not_flat(case)
    names = [name for name, _ in module.named_parameters()]

    def value(inputs: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (inputs,))

    try:
        torch.autograd.gradcheck(value, (inputs, *module.parameters()), fast_mode=True)
    except GradcheckError as error:  # what follows the first paragraph is matrices, page after page
        raise AssertionError(f"{str(error).split(chr(10) * 2)[0]}\n(inputs: rows, {', '.join(names)})") from None


def moves(case: Case) -> None:
    """All that forward uses follows to another precision and device: keep tensors as parameters or buffers
    (register_buffer), make new ones with device=rows.device and dtype=rows.dtype, read no number out of them.
    """
    inputs = case.inputs(7)
    expect_values(shaken(case.make()).double()(inputs.double() if case.alone else inputs), 7, torch.float64)
    for device in ["meta", *(["cuda"] if torch.cuda.is_available() else [])]:
        module = case.make().eval().to(device)
        try:
            with OneDevice():
                values = module(inputs.to(device))
        except NotImplementedError:  # an operation that has no meta form, such as unique: it cannot be checked
            continue
        found = (values.device.type, tuple(values.shape))
        assert found == (device, (7,)), f"the values are {found}, not {(device, (7,))}"


def saved(case: Case) -> None:
    """A model that is loaded from its run folder predicts the same: whatever is drawn or learnt is a parameter
    or a buffer, and a subclass of Nonlinear hands all its options to Nonlinear's constructor.
    """
    model, cells = case.make_model(), case.cells()
    shaken(model).train()(cells)  # running figures move
    seen = [Table((n,), (size,), np.arange(size), np.zeros(size + 1)) for n, size in enumerate(model.shape)]
    predictor = JointPredictor(model.eval(), Tables(0.0, tuple(seen), ()))
    spec = model.config()["nonlinear"]
    with tempfile.TemporaryDirectory() as folder:
        save_predictor(predictor, Path(folder) / "weights")
        torch.default_generator.manual_seed(2)
        known = spec.partition(",")[0] in nonlinear_parts.names()
        again = load_predictor(Path(folder) / "weights", None if known else case.make_part())
    found, expected = (torch.as_tensor(which.predict(cells.numpy())) for which in (again, predictor))
    expect_equal(found, expected, f"the values before and after saving as '{spec}'", rounding=0)


def sum_of_halves(case: Case) -> None:
    """The joint model's value is g of the rows of A plus f of the rows of B."""
    model, inputs = case.make_model().eval(), case.inputs(9)
    assert model.nonlinear is not None, "F is 0"
    g = torch.ones(len(inputs), case.rank[0])  # (batch, R)
    for n, table in enumerate(model.linear_factors):
        g = g * table[inputs[:, n]]
    rows = torch.stack([table[inputs[:, n]] for n, table in enumerate(model.nonlinear_factors)], dim=1)
    expect_equal(model(inputs), g.sum(dim=1) + model.nonlinear.part(rows), "the values of the model and of g + f")


def fresh_start(case: Case) -> None:
    """A restart forgets the fit before it: a module that holds parameters of its own has a method
    reset_parameters() that draws them anew, as torch's layers do.
    """
    made = [case.make_model(), case.make_model()]
    for model in made:
        shaken(model).train()(case.cells())
        torch.default_generator.manual_seed(1)
        initialise(model, (3.0, 1.2), start="data")
    expect_equal(made[0].state_dict(), made[1].state_dict(), "the parameters of two starts of one seed", rounding=0)


PROMISES = (shape, batch_of_one, own_entry_only, same_seed, gradient, moves, saved, fresh_start)
"""What holds for f alone and for the joint model."""


class OneDevice(TorchFunctionMode):
    """Refuses operations between two devices; the meta device by itself lets many of them pass."""

    across = (Tensor.to, Tensor.type_as, Tensor.copy_, Tensor.__getitem__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        given += [one for several in given if isinstance(several, list | tuple) for one in several]
        # a tensor of one number and no dimension may be anywhere
        devices = sorted({one.device.type for one in given if isinstance(one, Tensor) and one.dim()})
        together = len(devices) < 2 or func in self.across
        assert together, f"{func.__name__} is given tensors on {' and '.join(devices)}"
        return func(*args, **(kwargs or {}))


def shaken(module: nn.Module) -> nn.Module:
    """The module with its parameters moved a little: zeros and kinks are no place for a check."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


def not_flat(case: Case) -> tuple[nn.Module, Tensor]:
    """Module and inputs, in 64 bits, whose values change with the rows."""
    for _ in range(DRAWS):
        module, inputs = shaken(case.make()).double().eval(), case.inputs(5)
        inputs = inputs.double().requires_grad_() if case.alone else inputs
        half = module.nonlinear if isinstance(module, JointModel) else None
        rows = inputs if half is None else half.factors.stacked
        values = module(inputs)
        mixed = values @ torch.randn(5).double()
        slopes = torch.autograd.grad(mixed, rows, allow_unused=True) if values.requires_grad else ()
        if any(slope is not None and bool(slope.any()) for slope in slopes):
            return module, inputs
    raise AssertionError("no gradient reaches the rows")


def expect_values(values: Any, batch: int, dtype: torch.dtype = torch.float32) -> None:
    """One finite number per entry."""
    found = (tuple(values.shape), values.dtype) if isinstance(values, Tensor) else type(values)
    assert found == ((batch,), dtype), f"the values are {found}, not {((batch,), dtype)}"
    assert torch.isfinite(values).all(), "some values are not finite"


def expect_equal(found: object, expected: object, what: str, *, rounding: float | None = None) -> None:
    """Equal tensors, or mappings of tensors; ``None`` allows for what 32 bits round."""
    torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding, msg=lambda text: f"{what} differ: {text}")
