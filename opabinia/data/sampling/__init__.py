"""The samples of an epoch and their order, and how they are divided into batches."""
