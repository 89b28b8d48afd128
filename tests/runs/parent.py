"""A parent with two workers that sleep for an hour: ``python -m tests.runs.parent FOLDER``; each writes its number."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from jointensor.runs.compare import end_with_parent


def sleep(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(3600)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=end_with_parent) as pool:
        for _ in range(2):
            pool.submit(sleep, sys.argv[1])
