"""Several views of one image, for learning without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from opabinia.config import register
from opabinia.contracts import Count, Sample, TransformPart
from opabinia.data.device_transforms.recorded import CHANGES


@register.section(name="view")
@dataclass(frozen=True, kw_only=True)
class View:
    """One view of an image, or several that are made alike.

    Args:
        transforms: changes to the image, in order; each view draws its own.
        count: how many views are made in this way.
    """

    transforms: Sequence[TransformPart]
    count: Count = 1


@register.transform(name="views")
class Views:
    """Several views of one image; views of one size go through the network together.

    In place of ``image`` the sample has ``views``, a tuple of V images, and, where their transforms draw one,
    ``patch_masks``, a tuple of the masks of the first views. Batches have tuples of V tensors of B rows.

    Args:
        views: how each of them is made. Of several sizes the larger come first: methods with several crops take their
            targets from the first ones.

    Raises:
        ValueError: there are none.

    Example::

        transforms:
          - name: views
            views:
              - {count: 2, transforms: [{name: RandomResizedCrop, size: 224, scale: [0.14, 1.0]}, RandomHorizontalFlip]}
              - {count: 6, transforms: [{name: RandomResizedCrop, size: 96, scale: [0.05, 0.14]}, RandomHorizontalFlip]}
    """

    def __init__(self, *, views: list[View]) -> None:
        if not views:
            raise ValueError("views: at least one is needed")
        self._views = views
        self._each = [(number, view.transforms) for number, view in enumerate(views) for _ in range(view.count)]

    @property
    def each(self) -> list[Sequence[TransformPart]]:
        """The transforms of each kind of view."""
        return [view.transforms for view in self._views]

    def with_transforms(self, change: Callable[[Sequence[TransformPart]], Sequence[TransformPart]]) -> Views:
        """The same views with other transforms, which ``change`` makes of those of each view."""
        return Views(views=[replace(view, transforms=change(view.transforms)) for view in self._views])

    def __call__(self, sample: Sample) -> Sample:
        """The sample with ``views`` in place of its image.

        Raises:
            ValueError: a view has a patch mask, and one before it has none; or a transform fails.
        """
        seen = [self._seen(sample, number, transforms) for number, transforms in self._each]
        rest = {key: value for key, value in sample.items() if key not in ("image", "patch_mask")}
        masks = [view["patch_mask"] for view in seen if "patch_mask" in view]
        if any("patch_mask" not in view for view in seen[: len(masks)]):
            raise ValueError("views with a patch mask come before those without")
        return {
            **rest,
            "views": tuple(view["image"] for view in seen),
            **({"patch_masks": tuple(masks)} if masks else {}),
            **({CHANGES: tuple(view[CHANGES] for view in seen)} if CHANGES in seen[0] else {}),
        }

    def _seen(self, sample: Sample, number: int, transforms: Sequence[TransformPart]) -> Sample:
        # Some transforms work in place.
        view = {"image": sample["image"].clone()}
        for place, transform in enumerate(transforms):
            try:
                view = transform(view)
            except Exception as error:
                raise ValueError(f"views.{number}.transforms.{place}: {type(error).__name__}: {error}") from error
        return view
