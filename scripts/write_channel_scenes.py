"""Write the embedded digit scenes as images with five channels of 16 bits, with bounding boxes in YOLO's format.

    python scripts/write_channel_scenes.py OUT --train 1600 --val 400 --format npy

The channels are the scene, its negative, and three with noise of their own: as a sensor with several bands, each sees
the same digits in another way. ``--format tif`` needs tifffile.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opabinia.data.sources.digit_scenes import DigitScenes

CHANNELS = 5


def channels_of(gray: NDArray[np.uint8], seed: int) -> NDArray[np.uint16]:
    """Return five channels (uint16, H x W x 5) of a gray image (uint8, H x W)."""
    noise = np.random.default_rng(seed).integers(-4000, 4001, (*gray.shape, CHANNELS))
    levels = gray.astype(np.int64) * 200 + 5000
    bands = np.stack([levels, 65535 - levels, levels // 2 + 8000, 60000 - levels // 2, levels // 4 + 20000], 2)
    return np.clip(bands + noise, 0, 65535).astype(np.uint16)


def write_scenes(out: Path, counts: dict[str, int], suffix: str = "npy") -> None:
    """Write ``images/SPLIT/*`` and ``labels/SPLIT/*.txt``, and ``data.yaml`` with the names of the classes.

    Args:
        out: the folder.
        counts: number of images of each split.
        suffix: ``npy`` or ``tif``.
    """
    for split, count in counts.items():
        source = DigitScenes(split=split)  # type: ignore[arg-type]
        images, labels = out / "images" / split, out / "labels" / split
        images.mkdir(parents=True, exist_ok=True)
        labels.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            sample = source[index]
            pixels = channels_of(sample["image"][0].numpy(), index)
            if suffix == "npy":
                np.save(images / f"{index:04d}.npy", pixels)
            else:
                import tifffile

                tifffile.imwrite(images / f"{index:04d}.tif", pixels.transpose(2, 0, 1), planarconfig="separate")
            height, width = pixels.shape[:2]
            lines = [
                f"{label} {(left + right) / 2 / width} {(top + bottom) / 2 / height} {(right - left) / width} "
                f"{(bottom - top) / height}"
                for label, (left, top, right, bottom) in zip(
                    sample["labels"].tolist(), sample["boxes"].tolist(), strict=True
                )
            ]
            (labels / f"{index:04d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = ", ".join(f"'{digit}'" for digit in range(10))
    text = f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n"
    (out / "data.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=1600)
    parser.add_argument("--val", type=int, default=400)
    parser.add_argument("--format", choices=["npy", "tif"], default="npy")
    options = parser.parse_args()
    write_scenes(options.out, {"train": options.train, "val": options.val}, options.format)
