"""Pictures of identities: what the sources for re-identification have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torchvision import tv_tensors

from opabinia.contracts import Sample
from opabinia.data.decoding.images import EXTENSIONS, Encoded, read_image
from opabinia.data.sources.file_names import Names, sorted_names
from opabinia.data.sources.folder import existing_folder, is_picture
from opabinia.data.sources.list_files import refuse_bad

Part = Literal["train", "query", "gallery"]
"""What the pictures of a data set are for."""

Split = Literal["train", "test", "query", "gallery", "all"]
"""What is made a source of: ``test`` is query and gallery, ``all`` everything there is to train on."""


class Picture(NamedTuple):
    """A picture as a data set names it.

    Attributes:
        name: its path below the root, as the file system has it.
        identity: who or what it shows.
        camera: which one took it, from 0; None when nobody tells.
        view: from which side, from 0; None when nobody tells.
    """

    name: bytes
    identity: str
    camera: int | None = None
    view: int | None = None


class Listing(NamedTuple):
    """The pictures of a split.

    Attributes:
        pictures: in the order of the source.
        classes: the identities in the order of their labels.
        queries: which pictures are looked for (bool, N); None where none is set apart.
    """

    pictures: Sequence[Picture]
    classes: Sequence[str]
    queries: NDArray[np.bool_] | None = None


class Identities:
    """Pictures of identities (:class:`opabinia.contracts.Source`); the label is the number of the identity.

    A sample's id is its path below the root.

    Args:
        root: the folder that the names count from.
        listing: what there is.
        cameras: how many there are in the whole data set, whatever part of it this is; 0 when nobody tells.
        views: likewise.
        channels: 3 for colour, 1 for grey; pictures of the other kind are converted.
        numbered_anew: the test set calls its identities as training does, though they are others.

    Attributes:
        labels, cameras, views: of each picture (int64, N); the latter two None when nobody tells.
        queries: those of the listing.
        camera_count, view_count: the numbers given as ``cameras`` and ``views``.
        numbered_anew: as given.
    """

    def __init__(
        self,
        root: Path,
        listing: Listing,
        *,
        cameras: int = 0,
        views: int = 0,
        channels: Literal[1, 3] = 3,
        numbered_anew: bool = False,
    ) -> None:
        pictures = listing.pictures
        number = {name: label for label, name in enumerate(listing.classes)}
        self.root = root
        self.channels: Literal[1, 3] = channels
        self.classes = tuple(listing.classes)
        self.labels = np.array([number[one.identity] for one in pictures], dtype=np.int64)
        self.cameras = np.array([one.camera for one in pictures], dtype=np.int64) if cameras else None
        self.views = np.array([one.view for one in pictures], dtype=np.int64) if views else None
        self.queries = listing.queries
        self.camera_count, self.view_count = cameras, views
        self.numbered_anew = numbered_anew
        self._names = Names([one.name for one in pictures])
        if pictures and self.file(0) is not None:
            self.encoded = self._encoded

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Sample:
        return self._with(self.image(index), index)

    def _encoded(self, index: int) -> Sample:
        """The sample with its picture not decoded yet."""
        return self._with(Encoded.file(self._path(index), self.channels), index)

    def _with(self, image: tv_tensors.Image | Encoded, index: int) -> Sample:
        sample: Sample = {"image": image, "label": int(self.labels[index]), "id": self.id(index)}
        if self.cameras is not None:
            sample["camera"] = int(self.cameras[index])
        if self.views is not None:
            sample["view"] = int(self.views[index])
        if self.queries is not None:
            sample["query"] = bool(self.queries[index])
        return sample

    def id(self, index: int) -> str:
        """The path of a picture below the root."""
        return shown(self._names[index])

    def image(self, index: int) -> tv_tensors.Image:
        """A picture (uint8, C x H x W)."""
        return tv_tensors.Image(read_image(self._path(index), self.channels))

    def file(self, index: int) -> bytes | None:
        """Where a picture lies; None where it lies in no file of its own."""
        return self._path(index)

    def _path(self, index: int) -> bytes:
        return os.path.join(os.fsencode(self.root), self._names[index])

    def fingerprint(self) -> str:
        """Changes with the identities, the names of the pictures, what is known of them, and their order."""
        content = blake2b(self._names.content() + "\0".join(self.classes).encode(), digest_size=8)
        for name in ("labels", "cameras", "views", "queries"):
            column = getattr(self, name)
            content.update(name.encode() + (b"" if column is None else column.tobytes()))
        return f"{len(self)} pictures of {len(self.classes)} identities, {content.hexdigest()}"


def listed(
    where: object, split: Split, read: Callable[[Part], Sequence[Picture]], distractors: Collection[str] = ()
) -> Listing:
    """The pictures of a split of a data set whose query and gallery are set apart.

    Identities are sorted, by value where all are numbers. The parts of the test set, ``query`` and ``gallery``, number
    them as the whole set does. In ``all`` those of the test set come after the others, as ``test/0007``, whatever they
    are called in training: FastReID's COMBINEALL. Only ``test``, ``query`` and ``gallery`` tell queries.

    Args:
        where: what errors name, such as the root.
        split: what is wanted.
        read: the pictures of a part, without junk, sorted.
        distractors: identities that are nobody in particular; they are not trained on.

    Raises:
        ValueError: one identity only to train on, or a query set of which none is in the gallery.
    """
    queries: NDArray[np.bool_] | None = None
    if split in ("train", "all"):
        pictures = [one for one in read("train") if one.identity not in distractors]
        classes = sorted_names({one.identity for one in pictures})
        if split == "all":
            test = [one for part in _SEARCHED for one in read(part) if one.identity not in distractors]
            pictures += [one._replace(identity=f"test/{one.identity}") for one in test]
            classes += [f"test/{name}" for name in sorted_names({one.identity for one in test})]
        refuse_one_identity(where, classes)
    else:
        parts = {part: list(read(part)) for part in _SEARCHED}
        refuse_strangers(where, *parts.values())
        classes = sorted_names({one.identity for part in parts.values() for one in part})
        chosen = [part for part in _SEARCHED if split in ("test", part)]
        pictures = [one for part in chosen for one in parts[part]]
        queries = np.repeat([part == "query" for part in chosen], [len(parts[part]) for part in chosen])
    return Listing(pictures, classes, queries)


_SEARCHED: tuple[Part, Part] = ("query", "gallery")


def refuse_one_identity(where: object, classes: Sequence[str]) -> None:
    """Tell that there is nothing to learn: with one identity, nothing has to be told apart.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(classes) < 2:
        found = f"only the identity {classes[0]!r}" if classes else "no identity"
        raise ValueError(f"{where} has {found} to train on; telling identities apart takes at least 2")


def refuse_strangers(where: object, query: Sequence[Picture], gallery: Sequence[Picture]) -> None:
    """Tell that nothing can be found.

    Raises:
        ValueError: no identity of the queries is in the gallery, or each by pictures of the query's own camera only.
    """
    cameras: dict[str, set[int | None]] = {}
    for one in gallery:
        cameras.setdefault(one.identity, set()).add(one.camera)
    if not any(one.identity in cameras for one in query):
        wanted, held = (", ".join(sorted_names({one.identity for one in part})[:3]) for part in (query, gallery))
        raise ValueError(
            f"{where}: none of the identities that are looked for ({wanted} ...) is in the gallery ({held} ...); "
            "query and gallery must show the same ones"
        )
    if not any(one.camera is None or cameras.get(one.identity, set()) - {one.camera} for one in query):
        raise ValueError(
            f"{where}: the gallery shows the identities that are looked for by the query's own camera only, and such "
            "pictures are not counted; query and gallery must show them by different cameras"
        )


# --- folders and files ------------------------------------------------------------------------------------------------


def data_root(root: Path, *names: str) -> Path:
    """The folder of a data set: ``root`` itself, or the first of ``names`` that is in it, as its archive unpacks.

    Raises:
        ValueError: there is no such folder.
    """
    root = existing_folder(root.expanduser())
    return next((root / name for name in names if (root / name).is_dir()), root)


def pictures_in(root: Path, folder: str) -> list[bytes]:
    """Paths below ``root`` of the pictures in one folder of it, sorted by their bytes; hidden ones are left out.

    Raises:
        ValueError: the folder is missing, or holds none.
    """
    path = existing_folder(root / folder)
    with os.scandir(os.fsencode(path)) as entries:
        found = sorted(one.name for one in entries if not one.name.startswith(b".") and is_picture(one.name))
    if not found:
        raise ValueError(f"{path} holds no picture ({', '.join(EXTENSIONS)})")
    return [os.fsencode(folder) + b"/" + name for name in found]


def named_pictures(root: Path, folder: str, cameras: int) -> list[Picture]:
    """The pictures of a folder whose names begin with identity and camera (from 1), without junk (identity -1).

    Raises:
        ValueError: the folder is missing or holds no picture but junk; names do not begin so, or have a camera beyond
            ``cameras``.
    """
    pictures: list[Picture] = []
    bad: list[str] = []
    paths = pictures_in(root, folder)
    for path in paths:
        name = shown(os.path.basename(path))
        match = _NAME.match(name)
        if match is None or not 1 <= int(match[2]) <= cameras:
            bad.append(name)
        elif match[1] != "-1":
            pictures.append(Picture(path, f"{int(match[1]):04d}", int(match[2]) - 1))
    expected = f"<identity>_c<camera, 1 to {cameras}>..., such as 0002_c1s1_000451_03.jpg"
    refuse_bad(root / folder, bad, len(paths), expected)
    if not pictures:
        raise ValueError(f"{root / folder} holds nothing but junk (identity -1)")
    return pictures


_NAME = re.compile(r"(-1|\d+)_c(\d+)")


def shown(name: bytes) -> str:
    """A name as it is told to people, whatever its bytes are."""
    return name.decode("utf-8", "backslashreplace")
