"""Data augmentation in batches on the device, with the random numbers drawn by the workers.

The list of transforms is split in two (``split``). Workers apply the first part to the image and the second part to a
:class:`~opabinia.data.device_transforms.recorded.RecordedImage`, which only records the operations; so the random
numbers are those of a run in which the workers do everything. They send the images after the first part and the
recorded operations, grouped by kind (``batch_ops``). :class:`~opabinia.data.device_transforms.apply.DeviceTransforms`
applies them on the device (``kernels``), then resizes and mixes the batch, which must come after.

The arithmetic is torchvision's for one image: on the CPU the result is bitwise identical; another device may round
differently.
"""
