"""Tensors, the files and tables they come from, and how they are split."""
