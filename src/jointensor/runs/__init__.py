"""Whole runs: from a source to a run folder, and from a run folder to predictions."""
