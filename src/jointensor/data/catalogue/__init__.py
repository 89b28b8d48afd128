"""The paper's tensors: where their publishers put them, and how they become tensors."""
