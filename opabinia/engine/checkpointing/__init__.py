"""Writing and reading checkpoints: whole or sharded, in a background thread."""
