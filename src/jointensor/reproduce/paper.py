"""Numbers that the paper prints, as it prints them."""

from __future__ import annotations

DATASETS = ("MovieLens", "Facebook", "Healthcare", "Enron-Emails", "NeurIPS", "Uber-Pickups")

SHAPES = {
    "MovieLens": ((139357, 57675, 2981), 20260421),
    "Facebook": ((42390, 39986, 1506), 738078),
    "Healthcare": ((2814, 266, 189, 728), 9002336),
    "Enron-Emails": ((6066, 5699, 244268, 1176), 54202099),
    "NeurIPS": ((2482, 2862, 14036, 17), 3101609),
    "Uber-Pickups": ((183, 24, 1140, 1717), 3309490),
}
"""Table 1: shape and known entries."""

_RMSE = {
    "JULIA": (0.825, 0.701, 35.746, 4.839, 3.509, 0.795),
    "COSTCO": (0.850, 0.714, 54.034, 4.856, 3.770, 0.830),
    "AVOCADO": (0.817, 0.739, 35.757, 5.974, 3.733, 0.875),
    "NeurTN": (0.820, 0.704, 36.799, 13.337, 3.689, 1.707),
    "CPC": (0.870, 0.766, 48.416, 5.837, 3.724, 0.838),
    "Tucker": (0.880, 1.357, 108.306, 8.248, 3.870, 1.732),
    "JULIA-COSTCO (4/16)": (0.829, 0.704, 39.080, 6.437, 3.036, 0.799),
    "JULIA-COSTCO (10/10)": (0.792, 0.714, 50.643, 5.300, 3.202, 0.814),
    "JULIA-COSTCO (16/4)": (0.799, 0.726, 46.615, 5.501, 3.346, 0.814),
    "JULIA-AVOCADO (4/16)": (0.823, 0.704, 33.302, 7.343, 3.666, 0.795),
    "JULIA-AVOCADO (10/10)": (0.799, 0.713, 36.122, 6.269, 3.388, 0.834),
    "JULIA-AVOCADO (16/4)": (0.809, 0.729, 46.744, 5.680, 3.609, 0.818),
    "JULIA-NeurTN (2/8)": (0.819, 0.703, 34.249, 8.576, 3.675, 0.885),
    "JULIA-NeurTN (5/5)": (0.799, 0.707, 51.087, 5.961, 3.681, 0.852),
    "JULIA-NeurTN (8/2)": (0.794, 0.709, 47.441, 5.941, 3.595, 0.838),
}
RMSE = {(method, data): value for method, row in _RMSE.items() for data, value in zip(DATASETS, row, strict=True)}
"""Tables 2 and 3."""

_RSE = {
    "JULIA": (0.225, 0.506, 0.330, 0.363, 0.736, 0.466),
    "COSTCO": (0.232, 0.515, 0.499, 0.364, 0.790, 0.486),
    "AVOCADO": (0.223, 0.530, 0.330, 0.455, 0.787, 0.513),
    "NeurTN": (0.224, 0.508, 0.340, 1.000, 0.773, 1.000),
    "CPC": (0.237, 0.552, 0.447, 0.438, 0.781, 0.491),
    "Tucker": (0.240, 0.973, 1.000, 0.618, 0.811, 1.015),
    "JULIA-COSTCO (4/16)": (0.226, 0.508, 0.361, 0.483, 0.636, 0.468),
    "JULIA-COSTCO (10/10)": (0.216, 0.515, 0.468, 0.397, 0.671, 0.477),
    "JULIA-COSTCO (16/4)": (0.218, 0.523, 0.431, 0.412, 0.701, 0.477),
    "JULIA-AVOCADO (4/16)": (0.225, 0.508, 0.308, 0.550, 0.768, 0.466),
    "JULIA-AVOCADO (10/10)": (0.218, 0.514, 0.334, 0.470, 0.710, 0.489),
    "JULIA-AVOCADO (16/4)": (0.221, 0.526, 0.432, 0.426, 0.756, 0.479),
    "JULIA-NeurTN (2/8)": (0.224, 0.507, 0.316, 0.643, 0.770, 0.519),
    "JULIA-NeurTN (5/5)": (0.218, 0.510, 0.472, 0.447, 0.772, 0.499),
    "JULIA-NeurTN (8/2)": (0.217, 0.511, 0.438, 0.445, 0.754, 0.491),
}
RSE = {(method, data): value for method, row in _RSE.items() for data, value in zip(DATASETS, row, strict=True)}
"""Tables 2 and 3: what the text calls RFE."""

TOTAL_SECONDS = {
    "AVOCADO": (486.2, 762.4, 359.1, 97.7),
    "COSTCO": (4793.9, 1545.2, 569.7, 784.5),
    "NeurTN": (583.0, 891.2, 210.5, 192.7),
}
SECONDS_PER_EPOCH = {
    "AVOCADO": (8.4, 8.3, 6.2, 4.1),
    "COSTCO": (33.8, 24.9, 16.3, 10.5),
    "NeurTN": (6.6, 7.7, 5.0, 3.7),
}
"""Table 4: alone, then inside JULIA with R/F of 4/16, 10/10 and 16/4."""

TIMED = "Enron-Emails"
"""The tensor of e-mails, on which the paper measures time."""

PLANTED_RMSE = 0.0012
"""Figure 2: test RMSE of the planted tensor."""

SUCCESS = {"COSTCO": 0.74, "JULIA-COSTCO (4/16)": 1.0, "JULIA-NeurTN (2/8)": 1.0}
"""Figure 5, as far as the text says."""

INSIDE = {"COSTCO": ("4/16", "10/10", "16/4"), "AVOCADO": ("4/16", "10/10", "16/4"), "NeurTN": ("2/8", "5/5", "8/2")}
"""R/F of each method inside JULIA."""

SPECS = {
    "JULIA": "julia:4/16", "COSTCO": "costco:20", "AVOCADO": "avocado:20", "NeurTN": "neurtn:10", "CPC": "cp:20",
    "Tucker": "tucker:20",
}  # fmt: skip
"""The paper's methods by our names; the paper does not give JULIA's R/F for table 2, 4/16 is that of figure 5."""


def inside(method: str, ratio: str) -> tuple[str, str]:
    """Name and spec of a method inside JULIA."""
    return f"JULIA-{method} ({ratio})", f"julia-{method.lower()}:{ratio}"
