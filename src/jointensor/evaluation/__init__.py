"""Looking at a trained model: figures, factor matching, components."""
