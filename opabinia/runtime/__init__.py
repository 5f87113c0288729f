"""Ground floor: processes, devices, seeds, files, durations and the log. Knows nothing of training."""
