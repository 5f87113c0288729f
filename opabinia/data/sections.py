"""The ``data`` section of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from opabinia.config import register
from opabinia.contracts import Count, MixPart, SourcePart, TransformPart


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


@register.section
@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained and evaluated on, and in which batches.

    Args:
        train: samples to train on.
        val: samples to evaluate on; null when there are none.
        batch_size: samples of one optimizer step, over all processes.
        workers: processes that read for each training or evaluation process; 0 reads in that process itself. The
            batches are the same with any number.
        shuffle: a new order for each epoch; false takes samples as they lie in the source.
        drop_last: leave out the incomplete batch at the end of each epoch.
        mix: changes to the training batches of each process, in order.
    """

    train: Stream
    val: Stream | None = None
    batch_size: Count
    workers: Annotated[int, Ge(0)] = 0
    shuffle: bool = True
    drop_last: bool = False
    mix: Sequence[MixPart] = ()
