"""The ``data`` section of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from annotated_types import Ge, MinLen

from opabinia.config import register
from opabinia.contracts import Combination, Count, MixPart, SamplerPart, SourcePart, TransformPart
from opabinia.runtime.durations import Duration

if (
    TYPE_CHECKING
):  # a command puts a number in the place of `auto` before it builds anything (`opabinia.training.auto_values`)
    CountOrAuto: TypeAlias = int
    WorkersOrAuto: TypeAlias = int
    PlaceOrAuto: TypeAlias = Literal["workers", "device"]
else:
    CountOrAuto = Count | Literal["auto"]
    WorkersOrAuto = Annotated[int, Ge(0)] | Literal["auto"]
    PlaceOrAuto = Literal["workers", "device", "auto"]


@register.section
@dataclass(frozen=True, kw_only=True)
class Stream:
    """Samples and what is done to each of them.

    Args:
        source: where samples come from.
        transforms: changes to each sample, in order.
    """

    source: SourcePart
    transforms: Sequence[TransformPart] = ()


@register.section(name="validation")
@dataclass(frozen=True, kw_only=True)
class ValidationStream(Stream):
    """Samples to evaluate on.

    Args:
        source: where samples come from.
        transforms: changes to each sample, in order.
        prefix: of the scores: ``val`` gives ``val/top1``.
        every: the period of its evaluation; null takes ``evaluate.every``.

    Raises:
        ValueError: a transform makes one sample of several.
    """

    prefix: Annotated[str, MinLen(1)] = "val"
    every: Duration | None = None

    def __post_init__(self) -> None:
        for number, transform in enumerate(self.transforms):
            if isinstance(transform, Combination):
                name = type(transform).__name__
                raise ValueError(
                    f"transforms.{number}: {name} makes one sample of several, and evaluations take samples as they "
                    "are; it belongs into data.train.transforms"
                )


@register.section
@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained and evaluated on, and in which batches.

    Args:
        train: samples to train on.
        val: samples to evaluate on, or a list of several sets with a ``prefix`` each; null when there are none. The
            first set's scores choose the best checkpoint.
        batch_size: samples of one optimizer step, over all processes; ``auto``: as many as fit into memory, tried out
            when the run begins, and kept by it.
        workers: processes that read for each training or evaluation process; 0 reads in that process itself; ``auto``:
            as few as keep up, tried out each time. The batches are the same with any number.
        shuffle: a new order for each epoch; false takes samples as they lie in the source.
        sampler: which samples make up an epoch, in place of each one once.
        drop_last: leave out the incomplete batch at the end of each epoch.
        mix: changes to the training batches of each process, in order.
        decode: ``reduced``: of a training picture whose first transform is RandomResizedCrop or Resize no more is
            decoded than is taken, and of JPEGs in the smallest of the sizes 1, 1/2, 1/4 and 1/8 that is not below what
            they are resized to; ``full``: in full, which gives slightly other pixels. Pictures to evaluate always are.
        cache: keep decoded pictures, so that only the first epoch decodes them: in memory for this run (``ram``), or on
            the disk for later ones, too (``disk``); null decodes every time. Training pictures are then as ``decode:
            full`` gives them; those to evaluate are kept where their source can.
        cache_size: shrink larger training pictures before they are kept until their shorter side has so many pixels;
            null keeps them as they are.
        augment_on: where training pictures are changed: ``workers``; or, from the last change on that cannot be done
            for a batch at once, the ``device``, with the same random numbers and, up to rounding, the same result;
            ``auto``: where it takes less time, tried out when the run begins, and kept by it.
        on_error: what is done about a sample that cannot be read: ``raise`` ends the run; ``skip`` trains on another
            one in its place, and leaves it out of evaluations and counts it.

    Raises:
        ValueError: a size for a cache that there is not.
    """

    train: Stream
    val: ValidationStream | list[ValidationStream] | None = None
    batch_size: CountOrAuto
    workers: WorkersOrAuto = 0
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
            raise ValueError(f"cache_size: {self.cache_size} says how pictures are kept; add cache: ram or cache: disk")

    def cheaper(self, gpu: bool) -> list[str]:
        """Settings that are not taken and can make reading cheaper, for a run on a GPU or on the CPU."""
        in_files = hasattr(self.train.source, "encoded")
        off = {
            "data.cache: disk": in_files and self.cache is None,
            "data.decode: reduced": in_files and self.cache is None and self.decode == "full",
            "data.augment_on: device": gpu and self.augment_on == "workers",
        }
        return [setting for setting, is_off in off.items() if is_off]

    @property
    def validation(self) -> list[ValidationStream]:
        """The sets to evaluate on.

        Raises:
            ValueError: two of them have the same prefix.
        """
        sets = self.val if isinstance(self.val, list) else [self.val] if self.val else []
        prefixes = [one.prefix for one in sets]
        for number, prefix in enumerate(prefixes):
            if prefix in prefixes[:number]:
                raise ValueError(f"val: two sets have the prefix {prefix!r}; give each its own, such as {prefix}_2")
        return sets
