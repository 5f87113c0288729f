"""The lowest layer: processes, devices, seeds, files, durations and the log. It knows nothing of training."""
