"""Images and labels in tar files."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import pickle
import resource
import tarfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.data.sources import Shards, shard_index

Members = list[tuple[str, bytes]]


def encode(value: int, kind: str = "png") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 3), (value, 0, 0)).save(content, {"jpg": "JPEG"}.get(kind, kind))
    return content.getvalue()


def numbered(numbers: Iterable[int], classes: int = 3) -> Members:
    """Images filled with their number; the label is the number modulo the number of classes."""
    return [
        member
        for number in numbers
        for member in ((f"{number:04d}.png", encode(number)), (f"{number:04d}.cls", b"%d\n" % (number % classes)))
    ]


def write(path: Path, members: Members, form: int = tarfile.USTAR_FORMAT, mtime: float = 0) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime  # type: ignore[assignment]
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards of 4, 1 and 7 samples."""
    for number, (first, last) in enumerate([(0, 4), (4, 5), (5, 12)]):
        write(tmp_path / f"t-{number:02d}.tar", numbered(range(first, last)))
    return tmp_path


def test_samples_by_index(folder: Path) -> None:
    source = Shards(files=str(folder / "t-{00..02}.tar"))
    assert isinstance(source, Source)
    assert (len(source), source.classes, source.info.shards.tolist()) == (12, ("0", "1", "2"), [4, 1, 7])
    assert source.info.labels.tolist() == [number % 3 for number in range(12)]
    for index in (11, 0, 4, 5, 3):
        sample = source[index]
        assert sample["image"].shape == (3, 3, 4) and int(sample["image"][0, 0, 0]) == index
        assert (sample["label"], type(sample["label"])) == (index % 3, int)
        shard = 0 if index < 4 else 1 if index < 5 else 2
        assert sample["id"] == f"t-{shard:02d}.tar/{index:04d}.png"
    for index in (-1, 12):
        with pytest.raises(IndexError, match="of 12 images"):
            source[index]


def test_file_patterns(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "t-02.tar").rename(folder / "more" / "t-02.tar")
    patterns: list[Any] = [
        [str(folder / "t-{0..1}.tar").replace("-{", "-0{"), str(folder / "more" / "t-02.tar")],
        [str(folder / "t-*.tar"), str(folder / "more" / "t-0[2].tar")],
        [str(folder / f"t-0{number}.tar") for number in (0, 1)] + [str(folder / "more/*")],
        str(folder / "**" / "*.tar"),
    ]
    ids = [[source[index]["id"] for index in range(12)] for source in (Shards(files=pattern) for pattern in patterns)]
    assert ids[0] == ids[1] == ids[2] and sorted(ids[0]) == sorted(ids[3])
    assert ids[0][0] == "t-00.tar/0000.png" and ids[0][11] == "more/t-02.tar/0011.png"
    assert Shards(files=patterns[2][::-1])[0]["id"] == "more/t-02.tar/0005.png"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("t-{00..03}.tar", r"there is no file .*t-03\.tar \(.*\{00\.\.03\}\.tar\)"),
        ("x*.tar", r"there is no file .*x\*\.tar"),
        (["t-00.tar", "t-{00..01}.tar"], r"t-00\.tar is listed twice"),
        ("t-{2..0}.tar", r"\{2\.\.0\} counts down"),
    ],
)
def test_invalid_file_patterns_raise(folder: Path, files: Any, message: str) -> None:
    patterns = str(folder / files) if isinstance(files, str) else [str(folder / name) for name in files]
    with pytest.raises(ValueError, match=message):
        Shards(files=patterns)


# --- members ----------------------------------------------------------------------------------------------------------


FORMS = ((tarfile.USTAR_FORMAT, 0), (tarfile.GNU_FORMAT, 0), (tarfile.PAX_FORMAT, 0), (tarfile.PAX_FORMAT, 1.5))


@pytest.mark.parametrize(("form", "mtime"), FORMS, ids=["ustar", "gnu", "pax", "as webdataset writes them"])
def test_unusual_member_names(tmp_path: Path, form: int, mtime: float) -> None:
    keys = ["a/0001", "b/0001", "Käfer", f"{'long' * 20}/{'er' * 30}", "with space"]
    contents = [((f"{key}.jpg", encode(number, "jpg")), (f"{key}.cls", b"0")) for number, key in enumerate(keys)]
    source = Shards(files=str(write(tmp_path / "s.tar", [*chain.from_iterable(contents)], form, mtime)))
    assert [source[index]["id"] for index in range(5)] == [f"s.tar/{key}.jpg" for key in keys]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe4.tar"))
    members = [("K\udce4fer.png", encode(0)), ("K\udce4fer.cls", b"0")]
    source = Shards(files=str(write(path, members, tarfile.GNU_FORMAT)))
    assert source[0]["id"] == r"\xe4.tar/K\xe4fer.png"
    assert source.fingerprint().encode()


def test_members_with_the_same_key_form_a_sample(tmp_path: Path) -> None:
    members: Members = [
        ("README", b"no key"),
        (".hidden.png", b"no key"),
        ("a.cls", b"1"),
        ("b.PNG", encode(2)),
        ("a.depth.png", b"another kind"),
        ("b.cls", b"0"),
        ("a.txt", b"another kind"),
        ("a.png", encode(1)),
    ]
    path = write(tmp_path / "s.tar", members)
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("folder.png")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    source = Shards(files=str(path))
    samples = [(sample["id"], sample["label"], int(sample["image"][0, 0, 0])) for sample in (source[0], source[1])]
    assert samples == [("s.tar/a.png", 1, 1), ("s.tar/b.PNG", 0, 2)]


def labelled(labels: list[Any], kind: str = "cls") -> Members:
    contents = [json.dumps({"species": label}) if kind == "json" else str(label) for label in labels]
    pairs = (
        [(f"{number}.png", encode(number)), (f"{number}.{kind}", text.encode())] for number, text in enumerate(contents)
    )
    return [member for pair in pairs for member in pair]


@pytest.mark.parametrize(
    ("labels", "classes", "indices", "names"),
    [
        ([0, 2, 10], None, [0, 2, 10], tuple(map(str, range(11)))),
        (["002", " 0\n"], None, [2, 0], ("0", "1", "2")),
        (["dog", "cat", "dog"], None, [1, 0, 1], ("cat", "dog")),
        (["dog", "cat"], ["dog", "emu", "cat"], [0, 2], ("dog", "emu", "cat")),
        ([1, "dog"], ["dog", "cat"], [1, 0], ("dog", "cat")),
    ],
)
@pytest.mark.parametrize("kind", ["cls", "json"])
def test_labels(
    tmp_path: Path, kind: str, labels: list[Any], classes: list[str] | None, indices: list[int], names: tuple[str, ...]
) -> None:
    path = write(tmp_path / "s.tar", labelled(labels, kind))
    source = Shards(files=str(path), classes=classes, json_label="species" if kind == "json" else None)
    assert source.info.labels.tolist() == indices and source.classes == names
    assert [source[index]["label"] for index in range(len(labels))] == indices


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 1, 3], ["a", "b", "c"], r"s\.tar/2\.png: its label 3 is none of the 3 classes \(a, b, c\)"),
        (["a", "x", "b"], ["a", "b"], r"s\.tar/1\.png: its label x is none of the 2 classes"),
        (["a"], ["a", "b", "a"], "classes: 'a' is listed twice"),
    ],
)
def test_unknown_labels_raise(tmp_path: Path, labels: list[Any], classes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shards(files=str(write(tmp_path / "s.tar", labelled(labels))), classes=classes)


VALID = numbered([1, 2])
DEEP = b"[" * 100_000
INVALID: dict[str, tuple[Members, str]] = {
    "label of 5000 digits": ([("a.png", b""), ("a.cls", b"9" * 5000)], r"sample 'a' \(cls, png\): .*5000 characters"),
    "label of 30 digits": ([("a.png", b""), ("a.cls", b"9" * 30)], r"sample 'a' \(cls, png\): .*too many classes"),
    "label of a billion": (labelled([1_000_000_000]), r"/0\.png: label '1000000000': too many classes"),
    "label of NaN": (labelled(["nan"]), r"sample '0' \(cls, png\): its label is nan"),
    "negative label": (labelled([-1]), r"sample '0' \(cls, png\): its label is -1; class numbers count from 0"),
    "empty label": (labelled([""]), r"sample '0' .*: its label is empty"),
    "numbers and names": (
        labelled([0, "dog"]),
        r"some labels are numbers \(0 of s\.tar/0\.png\), others are names \('dog' of s\.tar/1\.png\)",
    ),
    "no label": ([*VALID, ("0003.png", encode(3))], r"sample '0003' \(png\): the label is missing, \.cls"),
    "no image": ([*VALID, ("0003.cls", b"1")], r"sample '0003' \(cls\): expected one image .* found 0"),
    "two images": ([*VALID, ("0001.jpg", b"")], r"sample '0001' \(cls, jpg, png\): expected one image .* found 2"),
    "twice": ([*VALID, *VALID], r"holds 0001\.png twice"),
    "nothing": ([], "has no samples"),
    "no sample": ([("README", b"")], "has no samples"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_members_raise(tmp_path: Path, case: str) -> None:
    members, message = INVALID[case]
    with pytest.raises(ValueError, match=rf"s\.tar.*{message}|{message}"):
        Shards(files=str(write(tmp_path / "s.tar", members)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"its \.json is not complete JSON"),
        (DEEP, r"its \.json cannot be read"),
        (b"[]", r"its \.json has no field 'species'; there is list"),
        (b'{"kind": 1}', r"its \.json has no field 'species'; there is kind"),
        (b'{"species": true}', "species is True, expected a class number or name"),
        (b'{"species": null}', "species is None, expected"),
    ],
)
def test_invalid_json_raises(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "s.tar", [("a.png", encode(0)), ("a.json", content)])
    with pytest.raises(ValueError, match=rf"s\.tar, sample 'a' \(json, png\): {message}"):
        Shards(files=str(path), json_label="species")


def test_truncated_and_damaged_shards_raise(tmp_path: Path) -> None:
    """Truncated in a header, an image or a label, or between two members, it is never read as a smaller shard."""
    path = write(tmp_path / "s.tar", VALID)
    content = path.read_bytes()
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"s\.tar\.gz is not a complete, uncompressed tar file"):
        Shards(files=str(tmp_path / "s.tar.gz"))
    for size in (0, 300, 512, 530, 1024, 1536, 3072, 4000):
        assert size < 4096 + 1024  # four members of two blocks each, and the end
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"s\.tar is not a complete, uncompressed tar file"):
            Shards(files=str(path))
    path.write_bytes(content[:2048] + bytes([content[2048] ^ 1]) + content[2049:])
    with pytest.raises(ValueError, match="truncated or damaged at byte 2048"):
        Shards(files=str(path))
    (tmp_path / "l.tar").symlink_to("l.tar")
    with pytest.raises(ValueError, match=r"l\.tar cannot be read: Too many levels of symbolic links"):
        Shards(files=str(tmp_path / "l*.tar"))


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", [("a.png", encode(0)[:40]), ("a.cls", b"0")])
    with pytest.raises(ValueError, match=r"s\.tar/a\.png cannot be decoded"):
        Shards(files=str(path))[0]


# --- the index --------------------------------------------------------------------------------------------------------


def test_shards_are_scanned_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = shard_index._scan

    def counting_scan(path: Path, json_label: str | None) -> Any:
        scanned.append(path.name)
        return scan(path, json_label)

    monkeypatch.setattr(shard_index, "_scan", counting_scan)
    files, index = str(folder / "*.tar"), folder / "index"
    first = Shards(files=files, index_dir=index)
    reopened = Shards(files=files, index_dir=index, classes=["a", "b", "c"])
    assert scanned == ["t-00.tar", "t-01.tar", "t-02.tar"]
    assert reopened.info.labels.tolist() == first.info.labels.tolist() and reopened[7]["id"] == first[7]["id"]
    os.utime(folder / "t-01.tar", (1, 1))
    Shards(files=files, index_dir=index)
    assert len(scanned) == 6


def test_processes_that_start_at_the_same_time_make_one_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = shard_index._scan

    def recording_scan(path: Path, json_label: str | None) -> Any:
        with (folder / "scans").open("a") as file:
            file.write(f"{path.name}\n")
        return scan(path, json_label)

    def open_shards(_: int) -> int:
        start.wait()
        return len(Shards(files=str(folder / "*.tar"), index_dir=folder / "index"))

    monkeypatch.setattr(shard_index, "_scan", recording_scan)
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(3)
    processes = [fork.Process(target=open_shards, args=(number,)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted((folder / "scans").read_text().split()) == ["t-00.tar", "t-01.tar", "t-02.tar"]


def test_the_index_takes_18_bytes_a_sample(tmp_path: Path) -> None:
    write(tmp_path / "s.tar", numbered(range(200)))
    Shards(files=str(tmp_path / "s.tar"), index_dir=tmp_path / "index")
    (rows,) = tmp_path.glob("index/*/rows.npy")
    assert 18 * 200 < rows.stat().st_size <= 18 * 200 + 256  # numpy's header


def test_a_shard_changed_after_indexing_raises(folder: Path) -> None:
    source = Shards(files=str(folder / "*.tar"))
    write(folder / "t-00.tar", numbered(range(4))[2:])
    os.truncate(folder / "t-01.tar", 530)
    (folder / "t-02.tar").write_bytes(b"\xff" * 30_000)
    for index, shard in ((3, "t-00"), (4, "t-01"), (5, "t-02")):
        with pytest.raises(ValueError, match=rf"{shard}\.tar, byte \d+: the shard has changed"):
            source[index]


def test_the_fingerprint_depends_on_the_content(folder: Path, tmp_path: Path) -> None:
    def fingerprint(**keys: Any) -> str:
        return Shards(files=str(folder / "*.tar"), **keys).fingerprint()

    first = fingerprint()
    for path in folder.glob("*.tar"):
        os.utime(path, (7, 7))  # a copy: the same samples
    assert fingerprint() == first
    assert fingerprint(classes=["a", "b", "c"]) != first
    assert Shards(files=[str(folder / f"t-0{number}.tar") for number in (1, 0, 2)]).fingerprint() != first
    write(folder / "t-01.tar", [("0004.png", encode(4)), ("0004.cls", b"0")])
    assert fingerprint() != first


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "s.tar", numbered(range(200)))

    def open_shards() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(ValueError, match=r"cannot write .*index/\w+: File too large; index_dir sets another"):
            Shards(files=str(tmp_path / "s.tar"), index_dir=tmp_path / "index")

    process = multiprocessing.get_context("fork").Process(target=open_shards)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not list(tmp_path.glob("index/*/rows.npy")) and not list(tmp_path.glob("index/.*.tmp"))


def test_only_a_new_index_is_locked(folder: Path) -> None:
    files, index = str(folder / "*.tar"), folder / "index"
    Shards(files=files, index_dir=index)
    (lock,) = index.glob("*.lock")
    lock.unlink()
    assert len(Shards(files=files, index_dir=index)) == 12
    assert not list(index.glob("*.lock"))
    with pytest.raises(ValueError, match=r"cannot write .*/t-00.tar/\w+\.lock: .*; index_dir sets another folder"):
        Shards(files=files, index_dir=folder / "t-00.tar")


def test_folders_with_equal_file_names_have_separate_indices(tmp_path: Path) -> None:
    labels = []
    for name, label in (("train", b"0"), ("val", b"1")):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name / "s.tar", [("a.png", encode(0)), ("a.cls", label)])
        os.utime(path, (0, 0))
        labels.append(Shards(files=str(path), classes=["a", "b"])[0]["label"])
    assert labels == [0, 1]


@pytest.mark.parametrize("name", ["rows.npy", "shards.json"])
def test_a_damaged_index_is_reported(folder: Path, name: str) -> None:
    files, index = str(folder / "*.tar"), folder / "index"
    Shards(files=files, index_dir=index)
    (path,) = index.glob(f"*/{name}")
    for content in (b"", b"{}", b'\x93NUMPY\x01\x00v\x00{"'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path.parent} is damaged .*; delete it, and it is rebuilt"):
            Shards(files=files, index_dir=index)


# --- in workers -------------------------------------------------------------------------------------------------------


def test_pickling_omits_open_files(folder: Path) -> None:
    source = Shards(files=str(folder / "*.tar"))
    fresh = len(pickle.dumps(source))
    assert source[5]["label"] == source.info.labels[5]
    packed = pickle.dumps(source)
    assert len(packed) == fresh
    assert [pickle.loads(packed)[index]["id"] for index in (0, 11)] == [source[0]["id"], source[11]["id"]]


def test_the_number_of_open_files_is_limited(tmp_path: Path) -> None:
    for number in range(80):
        write(tmp_path / f"{number:02d}.tar", numbered([number]))
    before = len(os.listdir("/proc/self/fd"))
    source = Shards(files=str(tmp_path / "*.tar"))
    assert [int(source[index]["image"][0, 0, 0]) for index in [*range(80), *range(80)]] == [*range(80)] * 2
    assert len(os.listdir("/proc/self/fd")) <= before + 64 + 1  # the memory-mapped index
    del source
    assert len(os.listdir("/proc/self/fd")) <= before


def test_workers_read_the_same_as_the_main_process(folder: Path) -> None:
    source = Shards(files=str(folder / "*.tar"))
    assert source[0]["label"] == 0  # so that a file is open when workers are forked
    batches = []
    for number in (0, 2):
        loader = Loader(BatchReader(source), evaluation_requests(12, 5, 0, 1), num_workers=number)
        batches.append(
            [(batch["id"], batch["image"].tolist(), batch["label"].tolist()) for _, batch in loader.iterate()]
        )
        loader.close()
    assert batches[0] == batches[1]
