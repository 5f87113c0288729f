"""Data augmentation by batch on the device, with the random numbers drawn by the workers."""
