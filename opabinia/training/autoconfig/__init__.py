"""Planning a recipe for a dataset, a machine and a budget: ``opabinia plan`` and ``opabinia train FOLDER``."""
