"""A folder of data as readers of layouts see it: names of files and folders, listed when they are asked for."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.values import ARRAY_EXTENSIONS
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import first_of

SPLITS = {
    "train": ("train", "training", "train2017", "train2014"),
    "val": ("val", "valid", "validation", "validate", "dev", "val2017", "val2014"),
    "test": ("test", "testing", "test2017", "test2014"),
}
"""Names of folders and files of each split, in lower case."""

ANNOTATIONS = re.compile(
    r"mask|(?<!un)label|annot|segm|ground.?truth|target|^maps?|(^|[_ -])maps?($|[_ -])|[_ -](seg|gts?)$|"
    r"^(seg|gts?)$|panoptic|manual",
    re.IGNORECASE,
)
"""Names of folders of segmentation maps and other annotations."""

WALKED = 200_000
"""Files of a folder tree that are counted, at most."""

PLACES = 500
"""Folders that are searched for annotations, at most."""

MAX_DEPTH = 5
"""Folders above annotations, at most."""

MAX_FOLDERS = 100_000
"""Folders that are listed, at most: more are no dataset, but a disk."""

_SKIPPED = ("__MACOSX",)
"""Folders that archives of macOS add."""

_DATA = (*IMAGES, ".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xml", ".yaml", ".yml", ".tar", ".zip", ".gz")
"""Suffixes of files that are mentioned if they are not read."""


class UnreadableLayout(ValueError):
    """The files have a layout that is known, and something in it is broken or missing. The text names the place."""


class DoubtfulLayout(UnreadableLayout):
    """The same, of files that are only like those of a layout: not reported if there is a reading of them."""


def split_of(name: str) -> str | None:
    """Return the split that a name stands for: ``train``, ``val`` or ``test``."""
    return next((split for split, names in SPLITS.items() if name.lower() in names), None)


_JOINED = re.compile(r"(set|data|images?|imgs?|split|list\d*|annot(ation)?s?|labels?|masks?|gts?)$")
"""Ends of words such as ``trainset`` and ``valannot``."""


def split_in(name: str) -> str | None:
    """Return the split that the first word of a name stands for that is one: ``seg_train``, ``x/val.csv``,
    ``TestImages``."""
    words = re.split(r"[^A-Za-z0-9]+", name) + re.findall(r"[A-Z]?[a-z]+\d*", name)
    words += [_JOINED.sub("", word.lower()) for word in words]
    return next((split for word in words if (split := split_of(word))), None)


class Folder:
    """A folder, or a single file in it.

    Names are sorted, hidden ones are skipped, symbolic links are followed unless they lead to a parent folder.

    Args:
        path: the local folder.
        text: the folder as a config names it: a path, or a URL.
        only: the only file that readers look for.
        parent: the folder that it is in, if that was given.
    """

    def __init__(self, path: Path, text: str, *, only: str | None = None, parent: Folder | None = None) -> None:
        self.path, self.text, self.only = path, text, only
        self._parents: Sequence[os.stat_result] = () if parent is None else (*parent._parents, os.stat(parent.path))
        self._top: Folder = self if parent is None else parent._top
        self._listed = 0  # folders, of the top one
        self._children: dict[str, Folder] = {}

    @cached_property
    def _entries(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        files: list[str] = []
        folders: list[str] = []
        self._top._listed += 1
        if self._top._listed > MAX_FOLDERS:
            raise UnreadableLayout(f"{self._top.text} has more than {MAX_FOLDERS} folders; give one of them")
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED and not _leads_nowhere(entry):
                        (folders if entry.is_dir() else files).append(entry.name)
        except OSError as error:
            place = shown_path(os.fsdecode(error.filename or self.path))
            raise UnreadableLayout(f"{place} cannot be searched: {error.strerror or error}") from error
        return tuple(sorted(files)), tuple(sorted(folders))

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files."""
        return self._entries[0] if self.only is None else (self.only,)

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders; none if a single file was given."""
        return self._entries[1] if self.only is None else ()

    @property
    def top(self) -> Folder:
        """The folder that was given."""
        return self._top

    @cached_property
    def whole(self) -> Folder:
        """The folder with all of its files, also if a single one was given."""
        return self if self.only is None else Folder(self.path, self.text)

    def sub(self, name: str) -> Folder:
        """Return a folder in it; ``name`` may have several parts, and may be empty for the folder itself."""
        first, _, rest = name.partition("/")
        if not first:
            return self
        if first not in self._children:
            self._children[first] = Folder(self.path / first, self.at(first), parent=self)
        return self._children[first].sub(rest)

    def at(self, name: str) -> str:
        """Return a file or folder in it as a config names it."""
        return f"{self.text.rstrip('/')}/{name}" if name and self.text != "." else name or self.text

    def find(self, *names: str) -> str | None:
        """Return the folder whose name is one of ``names`` in lower case, the first of these that there is."""
        by_name = {folder.lower(): folder for folder in reversed(self.folders)}
        return next((by_name[name] for name in names if name in by_name), None)

    @cached_property
    def splits(self) -> dict[str, str]:
        """The folder of each split that there is: ``{"train": "Training"}``; of longer names, such as ``my_train``, if
        there are at least two."""
        found = {split: name for split, names in SPLITS.items() if (name := self.find(*names)) is not None}
        if found:
            return found
        others = [name for name in self.folders if not ANNOTATIONS.search(name)]
        longer = {split: [name for name in others if split_in(name) == split] for split in SPLITS}
        unique = {split: names[0] for split, names in longer.items() if len(names) == 1}
        return unique if "train" in unique and len(unique) > 1 else {}

    @cached_property
    def _has_arrays_only(self) -> bool:
        """Whether NumPy arrays are the images: there are such files, and no images."""
        return next(self._walk("", IMAGES), None) is None and next(self._walk("", ARRAY_EXTENSIONS), None) is not None

    def _searched(self, suffixes: Sequence[str]) -> tuple[str, ...]:
        """Return ``suffixes``; those of images with the suffixes of arrays if these are the images."""
        of_images = set(IMAGES) <= set(suffixes)
        return (*suffixes, *(ARRAY_EXTENSIONS if of_images and self._top._has_arrays_only else ()))

    def named(self, *suffixes: str) -> list[str]:
        """Return the names of the files with one of these suffixes, which are in lower case."""
        searched = self._searched(suffixes)
        return [name for name in self.files if name.lower().endswith(searched)]

    def has(self, name: str) -> bool:
        """Return whether there is a file or folder with this path below it."""
        try:
            return (self.path / name).exists()
        except (OSError, ValueError):  # too long, or with a null character
            return False

    def tree(self, suffixes: Sequence[str] = IMAGES, limit: int = WALKED) -> list[str]:
        """Return the paths of the first files at any depth with one of these suffixes, sorted by folder."""
        return list(islice(self._walk("", self._searched(suffixes)), limit))

    def holds(self, suffixes: Sequence[str] = IMAGES) -> bool:
        """Return whether there is such a file at any depth."""
        return self._begins_with(tuple(suffixes)) or bool(self.tree(suffixes, 1))

    def places(self, suffixes: Sequence[str] = IMAGES) -> list[str]:
        """Return the paths of folders that such files are in, among the first :data:`PLACES` ones, those above first.
        The folder itself is an empty text."""
        found, waiting = list[str](), deque([""])
        for _ in range(PLACES):
            if not waiting:
                break
            place = waiting.popleft()
            inner = self.sub(place)
            if inner.named(*suffixes):
                found.append(place)
            if place.count("/") < MAX_DEPTH - 1 and not inner.is_loop:
                waiting.extend(f"{place}/{name}".lstrip("/") for name in inner.folders)
        return found

    def root_of(self, names: Sequence[str], first: Sequence[str] = ()) -> str | None:
        """Return the folder that most of these paths of files are relative to: one of ``first`` or that itself, if one
        has all of them, else any that holds images; None if none has one of them."""
        whole, best, most = self.whole, None, 0
        above = (place.split("/") for place in whole.places() if names)
        below = ("/".join(parts[:end]) for parts in above for end in range(len(parts), 0, -1))
        for place in dict.fromkeys([*first, "", *below]):
            count = sum(whole.has(f"{place}/{name}".lstrip("/")) for name in names)
            if count > most:
                best, most = place, count
            if count and count == len(names):
                break
        return best

    @property
    def is_loop(self) -> bool:
        """Return whether it is a link to a folder that it is in."""
        status = os.stat(self.path)
        return any(os.path.samestat(status, parent) for parent in self._parents)

    @cached_property
    def images_by_name(self) -> dict[str, list[str]]:
        """The paths of images with a name, and with a name without its suffix, which ends with a dot here."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.tree():
            name = path.rpartition("/")[2]
            found[name].append(path)
            found[f"{os.path.splitext(name)[0]}."].append(path)
        return found

    def _begins_with(self, suffixes: tuple[str, ...]) -> bool:
        """Return whether such a file is among the first entries, without listing all of them."""
        try:
            with os.scandir(self.path) as entries:
                names = (entry.name for entry in islice(entries, 10) if entry.is_file())
                return any(name.lower().endswith(suffixes) and not name.startswith(".") for name in names)
        except OSError:  # the listing reports it
            return False

    def _walk(self, prefix: str, suffixes: tuple[str, ...]) -> Iterator[str]:
        if self.is_loop:
            return
        for name in self.files:
            if name.lower().endswith(suffixes):
                yield prefix + name
        for name in self.folders:
            yield from self.sub(name)._walk(f"{prefix}{name}/", suffixes)

    def head(self, name: str, size: int = 1 << 16) -> str:
        """Return the beginning of a file as text.

        Raises:
            UnreadableLayout: it cannot be read.
        """
        try:
            with (self.path / name).open("rb") as file:
                return file.read(size).decode("utf-8-sig", "replace")
        except OSError as error:
            raise UnreadableLayout(f"{self.at(name)} cannot be read: {error.strerror or error}") from error

    def others(self, used: Collection[str]) -> tuple[str, ...]:
        """Return a remark that names the folders, and the files that may be data, that are not in ``used``. With an
        empty name in it, images in the folder itself are used, and files of the same names."""
        if self.only is not None:
            return ()
        names = [f"{name}/" for name in self.folders if name not in used]
        stems = {os.path.splitext(name)[0] for name in self.named(*IMAGES)} if "" in used else ()  # read from here
        names += [name for name in self.named(*_DATA) if name not in used and os.path.splitext(name)[0] not in stems]
        return (f"not read: {first_of(names)}",) if names else ()

    def command(self, *options: str) -> str:
        """Return the command that trains on it with these options."""
        return shlex.join(["opabinia", "train", self.at(self.only or ""), *options])


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not entry.is_dir() and not os.path.exists(entry.path)


def listed(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names, separated by commas."""
    return ", ".join(names[:limit]) + (f" ... ({len(names)} in all)" if len(names) > limit else "")
