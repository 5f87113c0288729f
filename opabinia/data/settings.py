"""The ``data`` section of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from annotated_types import Interval

from opabinia.config import register
from opabinia.contracts import Count, MixPart, SamplerPart, Stream, ValidationStream

if TYPE_CHECKING:
    # Commands replace `auto` by a value before they build anything (`opabinia.training.run_folder`).
    CountOrAuto: TypeAlias = int
    WorkersOrAuto: TypeAlias = int
    PlaceOrAuto: TypeAlias = Literal["workers", "device"]
else:
    CountOrAuto = Count | Literal["auto"]
    WorkersOrAuto = Annotated[int, Interval(ge=0, le=1024)] | Literal["auto"]
    PlaceOrAuto = Literal["workers", "device", "auto"]


@register.section
@dataclass(frozen=True, kw_only=True)
class Data:
    """Datasets, batches and how they are read.

    Args:
        train: training samples; null in a multi-task run, whose tasks have theirs.
        val: samples to evaluate on, or a list of several datasets with a ``prefix`` each; null for none. The metrics of
            the first choose the best checkpoint.
        batch_size: samples of one optimizer step, over all processes; ``auto``: as many as fit into memory, measured
            when the run begins, and kept by it.
        num_workers: worker processes that read data for each training or evaluation process; 0 reads in that process
            itself; ``auto``: the smallest number that keeps up, measured each time. Batches do not depend on it.
        shuffle: a new order for each epoch; false keeps the order of the source.
        sampler: the samples of an epoch; null takes each sample once.
        drop_last: drop the incomplete batch at the end of each epoch; the streams of a multi-task run always do.
        mix: applied to the training batches of each process, in order.
        decode: ``reduced``: if the first transform of a training image is RandomResizedCrop or Resize, decode only the
            crop, and JPEGs at the lowest of the resolutions 1, 1/2, 1/4 and 1/8 that is not below the resized one;
            ``full``: decode the whole image, which gives slightly different pixels. Evaluation always uses ``full``.
        cache: keep decoded images, so that only the first epoch decodes them: in memory for this run (``ram``), or on
            disk, for later runs, too (``disk``); null decodes every time. Training images then have the pixels of
            ``decode: full``; evaluation images are cached if their source supports it.
        cache_size: downscale larger training images to this length of the shorter side before they are cached, in
            pixels; null keeps their size.
        augment_on: where training images are transformed: ``workers``; or, after the last transform that is not
            possible for a batch, the ``device``, with the same random numbers and, up to rounding, the same result;
            ``auto``: the faster of both, measured when the run begins, and kept by it.
        on_error: for a sample that cannot be read: ``raise`` ends the run; ``skip`` trains on another one instead, and
            skips and counts it in evaluations.

    Raises:
        ValueError: ``cache_size`` without a ``cache``, or two validation sets have the same prefix.
    """

    train: Stream | None = None
    val: ValidationStream | list[ValidationStream] | None = None
    batch_size: CountOrAuto
    num_workers: WorkersOrAuto = 0
    shuffle: bool = True
    sampler: SamplerPart | None = None
    drop_last: bool = False
    mix: Sequence[MixPart] = ()
    decode: Literal["reduced", "full"] = "reduced"
    cache: Literal["ram", "disk"] | None = None
    cache_size: Count | None = None
    augment_on: PlaceOrAuto = "workers"
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if self.cache_size is not None and self.cache is None:
            raise ValueError(
                f"cache_size: {self.cache_size} is the size of cached images; add cache: ram or cache: disk"
            )
        prefixes = [stream.prefix for stream in self.validation]
        for number, prefix in enumerate(prefixes):
            if prefix in prefixes[:number]:
                message = f"two datasets have the prefix {prefix!r}; give each its own, such as {prefix}_2"
                raise ValueError(f"val.{number}: {message}")

    def faster_options(self, gpu: bool) -> list[str]:
        """Return settings that are not used and could speed up reading, for a run on a GPU or on the CPU."""
        encoded = self.train is not None and self.train.source.info.encoded
        options = {
            "data.cache: disk": encoded and self.cache is None,
            "data.decode: reduced": encoded and self.cache is None and self.decode == "full",
            "data.augment_on: device": gpu and self.augment_on == "workers",
        }
        return [setting for setting, unused in options.items() if unused]

    @property
    def validation(self) -> list[ValidationStream]:
        """The datasets to evaluate on."""
        return self.val if isinstance(self.val, list) else [self.val] if self.val else []
