"""Contact sheets of drawn predictions (``sheet-1.png`` and so on)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from opabinia.contracts.presenting import save_image
from opabinia.visualization.drawing import contact_sheet

IMAGES_PER_SHEET = 60
THUMBNAIL = 720
"""Maximum side in pixels of an image that waits for its sheet."""

PAIR_COLUMNS, PAIR_SIZE = 4, 420
"""Images in a row, and their side in pixels, where each sample has two: ground truth and prediction."""


class Sheets:
    """Contact sheets ``sheet-N.png``, each written as soon as it is full.

    Args:
        out: the folder to write.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._number = out, 1
        self._layout: dict[str, int] = {}
        self._waiting: list[tuple[Image.Image, Sequence[str], str | None]] = []

    def add(self, image: Image.Image, caption: Sequence[str], frame: str | None = None) -> None:
        """Add an image, the lines of its caption, and a key of
        :data:`opabinia.visualization.drawing.FRAME_COLORS`."""
        image = image.copy()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        self._waiting.append((image, caption, frame))
        if len(self._waiting) == IMAGES_PER_SHEET:
            self.write()

    def add_pair(
        self, images: Sequence[Image.Image], captions: Sequence[Sequence[str]], frame: str | None = None
    ) -> None:
        """Add ground truth and prediction of a sample, which are drawn larger, side by side; see :meth:`add`."""
        self._layout = {"columns": PAIR_COLUMNS, "size": PAIR_SIZE}
        for image, caption in zip(images, captions, strict=True):
            self.add(image, caption, frame)

    def write(self) -> None:
        """Write the images that wait.

        Raises:
            DiskError: the sheet cannot be written.
        """
        if self._waiting:
            images, captions, frames = zip(*self._waiting, strict=True)
            sheet = contact_sheet(images, captions, frames=frames, **self._layout)
            save_image(self._out / f"sheet-{self._number}.png", sheet)
            self._number, self._waiting = self._number + 1, []
