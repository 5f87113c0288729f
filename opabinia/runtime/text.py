"""Text for the terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape line breaks, terminal codes and other characters that cannot be printed on one line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
