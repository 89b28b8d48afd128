"""Seconds of an exact sweep as the rank grows, beside what no sweep can do without, measured in the same run.

    python benchmarks/sweeps.py --threads 2
    python benchmarks/sweeps.py --device cuda --entries 39e6

CPU     2.6 million entries of 183 × 24 × 1140 × 1717, beside `ssyrk` of SciPy over blocks of the same sizes that are in
        the cache: no gathering, no targets, no solving. Both in turn; seconds are medians, the ratio of neighbours.
        Then sweeps in which the rows of the first two modes are linked, in turn with those without links.
GPU     the shape of the Enron tensor, beside the larger of two floors: bytes of all looked-up rows over the rate of a
        copy, and products of half a system per entry over the rate of a large matrix product (32 bits, or three
        products of TF32, whichever is faster). One sweep beforehand does not count.

Writes ``sweeps_cpu.json`` or ``sweeps_cuda.json``; `growth` is e of seconds ~ rank ** e from one rank to the next.
"""

import argparse
import math
import os
from itertools import pairwise
from pathlib import Path

RANKS = {"cpu": (16, 20, 64, 128, 256), "cuda": (16, 64, 128, 256, 512)}
ENTRIES = {"cpu": 2_600_000, "cuda": 39_000_000}
ALIKE = True
"""Without weights, as `ssyrk` needs it."""
LINKS = "+smooth:0+cyclic:1"
"""Of the tensor on the CPU."""
MATRIX = 8192
"""Rows and columns of the matrix product whose rate is a floor."""


def on_cpu(options):
    """Rows of the record, by rank."""
    import numpy as np
    import tensors
    import torch
    from ours import exact
    from timing import alternate, clock

    torch.set_num_threads(options.threads)
    indices, values = tensors.skewed(options.entries)
    found = {}
    for rank in options.ranks:
        _, als, ordered = exact(tensors.SHAPE, indices, values, rank)
        views = list(als.systems.views.values())
        plain = syrk_over_blocks([view.starts.numpy() for view in views], rank)

        def sweep(als=als, ordered=ordered):
            return clock(lambda: als.sweep(ordered))

        ours, floor = alternate(sweep, lambda plain=plain: clock(plain), options.passes)
        seconds = [[one.seconds for one in side] for side in (ours, floor)]
        processor = [[one.seconds * one.cores for one in side] for side in (ours, floor)]
        found[rank] = {
            "seconds": float(np.median(seconds[0])),
            "syrk": float(np.median(seconds[1])),
            "ratio": float(np.median(np.array(processor[0]) / np.array(processor[1]))),
            "passes": {"ours": seconds[0], "syrk": seconds[1], "cores": [one.cores for one in ours]},
        }
        _, linked, _ = exact(tensors.SHAPE, indices, values, rank, links=LINKS)

        def linked_sweep(als=linked, ordered=ordered):
            return clock(lambda: als.sweep(ordered))

        sides = alternate(linked_sweep, sweep, options.passes)
        with_links, without = (np.array([one.seconds for one in side]) for side in sides)
        found[rank] |= {"linked": float(np.median(with_links)), "linked_ratio": float(np.median(with_links / without))}
        print(f"R = {rank:4} linked rows {found[rank]['linked_ratio']:.2f} times the seconds of those without")
        show(
            rank, found[rank], f"syrk {found[rank]['syrk']:.3f} s, {found[rank]['ratio']:.2f} times its processor time"
        )
    return found


def syrk_over_blocks(starts, rank):
    """A call that multiplies blocks of numbers in the cache, as many and as long as those of a sweep."""
    import numpy as np
    from numba import njit

    from jointensor.kernels import numba_blas, numba_rows
    from jointensor.kernels.numba_blas import WIDE_TILE, add_gram
    from jointensor.kernels.numba_gather import padded
    from jointensor.threads import in_threads

    @njit(nogil=True)
    def multiply(starts, first, last, rank, width):
        space = numba_rows._space(rank, width, ALIKE, 0)
        space.rows[:] = 1.0
        for row in range(first, last):
            for start in range(starts[row], starts[row + 1], space.block):
                count = min(space.block, starts[row + 1] - start)
                add_gram(
                    space.rows, space.rows, ALIKE, count, space.stride, rank, WIDE_TILE, space.gram_32, space.numbers
                )

    shares = [(one, *edges) for one in starts for edges in pairwise(numba_rows._runs(one, rank))]
    multiply(starts[0], 0, 0, rank, padded(rank))

    def work():
        with numba_blas.blas_alone(), np.errstate(all="ignore"):
            in_threads(lambda share: multiply(*share, rank, padded(rank)), shares)

    return work


def on_cuda(options):
    """Rows of the record, by rank, and the rates that they are compared with."""
    import torch
    from gpu import SHAPE, copy_bandwidth, entries_on_device, sweep

    rates = {"copy": copy_bandwidth(), "products": matrix_rate()}
    name, terabytes, teraflops = torch.cuda.get_device_name(), rates["copy"] / 1e12, rates["products"] / 1e12
    print(f"{name}: copies {terabytes:.2f} TB/s, products {teraflops:.1f} TFLOP/s")
    entries, found = entries_on_device(options.entries), {}
    for rank in options.ranks:
        torch.cuda.reset_peak_memory_stats()
        seconds, moved = sweep(entries, rank)
        products = len(SHAPE) * options.entries * rank * (rank + 1)  # a multiplication and an addition, half a matrix
        floors = {"memory": moved / rates["copy"], "arithmetic": products / rates["products"]}
        found[rank] = {
            "seconds": seconds, "floors": floors, "ratio": seconds / max(floors.values()),
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        }  # fmt: skip
        show(rank, found[rank], f"floors {floors['memory']:.3f} s and {floors['arithmetic']:.3f} s, "
             f"{found[rank]['ratio']:.1f} times the larger; {found[rank]['peak_gib']:.1f} GiB")  # fmt: skip
    return found, {"gpu": name, "rates": rates}


def matrix_rate():
    """Operations per second of a large product that is exact to 32 bits."""
    import torch
    from gpu import seconds

    a, b = (torch.randn(MATRIX, MATRIX, device="cuda") for _ in range(2))
    operations = 2 * MATRIX**3
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    full = operations / seconds(lambda: a @ b)
    torch.set_float32_matmul_precision("high")
    thrice = operations / 3 / seconds(lambda: a @ b)
    torch.set_float32_matmul_precision(before)
    return max(full, thrice)


def show(rank, row, beside):
    print(f"R = {rank:4} {row['seconds']:8.3f} s   {beside}", flush=True)


def growth(found):
    """Exponent of the seconds from every rank to the next."""
    return {
        f"{low}-{high}": math.log(found[high]["seconds"] / found[low]["seconds"]) / math.log(high / low)
        for low, high in pairwise(found)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=RANKS, default="cpu")
    parser.add_argument("--entries", type=lambda text: int(float(text)))
    parser.add_argument("--ranks", type=lambda text: tuple(map(int, text.split(","))), metavar="R,…")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--passes", type=int, default=5, help="on the CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    options.entries = options.entries or ENTRIES[options.device]
    options.ranks = options.ranks or RANKS[options.device]
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)  # before any library is loaded

    from jointensor.atomic import write_json
    from jointensor.bench.records import provenance

    record = provenance(["triton"]) | {"threads": options.threads}
    found, about = on_cuda(options) if options.device == "cuda" else (on_cpu(options), {})
    record |= about | {"entries": options.entries, "sweeps": found, "growth": growth(found)}
    print("growth", {name: round(value, 2) for name, value in record["growth"].items()})
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"sweeps_{options.device}.json"
    write_json(path, record)


if __name__ == "__main__":
    main()
