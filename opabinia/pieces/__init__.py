"""Pieces that every command puts together in the same way: data, model, loaders, scores."""
