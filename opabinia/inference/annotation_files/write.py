"""Folders of drafts for annotation tools: the images, and the files that a tool imports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from PIL import Image

from opabinia.config import ConfigError, Problem
from opabinia.contracts.presenting import save_image
from opabinia.inference.annotation_files.cvat import cvat_files
from opabinia.inference.annotation_files.drafts import IMAGES, Draft, DraftSet
from opabinia.inference.annotation_files.label_studio import label_studio_files
from opabinia.inference.annotation_files.labelme import labelme_files
from opabinia.runtime.files import disk_errors, temporary_folder, write_atomic

Tool = Literal["cvat", "label_studio", "labelme"]

FILES: dict[Tool, Callable[[DraftSet], dict[str, str]]] = {
    "cvat": cvat_files,
    "label_studio": label_studio_files,
    "labelme": labelme_files,
}
"""By tool: the text of its files, by their paths."""


def write_drafts(
    drafts: Iterable[tuple[Draft, Path | Image.Image]],
    out: Path,
    tool: Tool,
    classes: Sequence[str],
    *,
    of_images: bool = False,
    multi_label: bool = False,
) -> int:
    """Write the images of drafts, and the files that a tool imports, and return the number of images.

    Args:
        drafts: each with its image, a file to copy or pixels.
        out: the folder to write, which does not exist; it appears when it is complete.
        tool: the annotation tool.
        classes, of_images, multi_label: see :class:`opabinia.inference.annotation_files.drafts.DraftSet`.

    Raises:
        ConfigError: ``out`` exists, or two images have the same name.
        DiskError: a file cannot be written.
    """
    check_absent(out)
    written: dict[str, Draft] = {}
    with disk_errors(out), temporary_folder(out) as temporary:
        for draft, image in drafts:
            if draft.name in written:
                raise ConfigError(Problem("command line", "--export", f"two images would be called {draft.name}"))
            written[draft.name] = draft
            path = temporary / IMAGES / draft.name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(image, Path):
                shutil.copyfile(image, path)
            else:
                save_image(path, image)
        (temporary / IMAGES).mkdir(exist_ok=True)
        for name, text in FILES[tool](DraftSet(classes, list(written.values()), of_images, multi_label)).items():
            write_atomic(temporary / name, text)
    return len(written)


def check_absent(out: Path) -> None:
    """Check that a folder of drafts is not there yet.

    Raises:
        ConfigError: it is; somebody may have corrected it.
    """
    if out.exists():
        message = f"{out} exists already, and may have corrections, which would be lost: move it, or remove it"
        raise ConfigError(Problem("command line", "--export", message))
