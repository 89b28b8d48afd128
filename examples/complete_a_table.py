"""From a table of observations to filled-in cells, in Python.

Run it anywhere: the table is generated. It prints the figures of the model and of the baselines on test entries.
"""

import numpy as np
import polars as pl

from jointensor import JointModel, Recipe, SparseTensor, evaluate, fit, split
from jointensor.metrics import rmse
from jointensor.predictors import fit_baselines

rng = np.random.default_rng(0)
shops, goods, weeks = 30, 20, 26
size, price = rng.lognormal(0, 0.5, shops), rng.lognormal(1, 0.5, goods)
season = 1 + 0.5 * np.sin(np.arange(weeks) / 4)
rows = [
    {
        "shop": f"shop {s:02d}",
        "good": f"good {g:02d}",
        "week": w,
        "sold": size[s] * price[g] * season[w] + rng.normal(0, 0.2),
    }
    for s in range(shops)
    for g in range(goods)
    for w in range(weeks)
    if rng.random() < 0.2  # four cells of five are missing
]

tensor = SparseTensor.from_frame(pl.DataFrame(rows), ["shop", "good", "week"], "sold")
parts = split(tensor, seed=0)
print(tensor)
for name, baseline in fit_baselines(parts).items():
    print(f"{name:12} test RMSE {rmse(baseline.predict(parts.test.indices), parts.test.values):.3f}")
result = fit(JointModel(tensor.shape, rank=(2, 4)), parts, Recipe(batch_size=128), seed=0)
print(f"{'JULIA 2/4':12} test RMSE {evaluate(result, parts.test)['rmse']:.3f}  ({result.outcome})")
