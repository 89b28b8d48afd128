"""``jointensor bench``: methods on tasks, a record for every result, and tables that are made from records alone.

task       a tensor, how its entries are divided, and published figures
method     anything that predicts cells from entries; a name, or one Python file
run        every method on every split of every task, each in a process of its own
records    results on disk, with commit, versions and machine
table      Markdown and CSV from records
"""

from jointensor.bench.method import Answer, Problem

__all__ = ["Answer", "Problem"]
