"""How one half of the model is fitted while the other is fixed: exactly, by sampling, or by gradients."""
