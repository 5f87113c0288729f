"""Folders of checkpoints, without a look into their tensors."""

from __future__ import annotations

from pathlib import Path


def has_tensors(folder: Path, name: str) -> bool:
    """Return whether a checkpoint has these tensors: in one file, or in a folder of files if they are sharded."""
    return (folder / f"{name}.safetensors").is_file() or (folder / name).is_dir()


def find_checkpoint(folder: Path) -> Path:
    """Return the checkpoint that a folder is or contains.

    Raises:
        ValueError: there is none.
    """
    if has_tensors(folder, "model"):
        return folder
    for parent in (folder / "checkpoints", folder):
        for pointer in ("best", "last"):
            if (parent / pointer).is_file():
                checkpoint = parent / (parent / pointer).read_text(encoding="utf-8", errors="replace").strip()
                if has_tensors(checkpoint, "model"):
                    return checkpoint
    runs = sorted(path.parent for path in folder.glob("*/checkpoints"))
    hint = f"; did you mean {runs[0]}?" if runs else ""
    raise ValueError(f"{folder}: neither a run with a checkpoint nor a checkpoint (model.safetensors){hint}")
