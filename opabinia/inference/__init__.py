"""Using trained models: load, predict, extract features, search, explain, export and serve."""
