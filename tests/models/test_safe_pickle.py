"""Safe unpickling: plain data is read, and pickles that could run code are refused."""

import builtins
import collections
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.models.weights.files import read_weights
from opabinia.models.weights.safe_pickle import read_pickle

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big end first": np.arange(3, dtype=">i4"),
    "view": np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
    "half": np.float16([1.5, -2]),
    "ground_truth": np.array([True, False]),
    "number": np.array(3, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.float32),
}


def write_pickle(path: Path, content: bytes | Any, protocol: int = 4) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    content = read_pickle(write_pickle(tmp_path / "a.pkl", {"model": ARRAYS, "__author__": "x"}, protocol))
    assert content["__author__"] == "x"
    assert content["model"].keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(content["model"][name], array, err_msg=name)
        assert content["model"][name].dtype == array.dtype.newbyteorder("="), name
        assert content["model"][name].flags.writeable


def test_plain_objects_are_read(tmp_path: Path) -> None:
    plain = {"list": [1, 2.5, "x", None, True], "ordered": collections.OrderedDict(b=1, a=2), 3: b"bytes", "n": 10**30}
    content = read_pickle(
        write_pickle(tmp_path / "a.pkl", {**plain, "scalar": np.float32(1.5), "set": {7}, "t": (1, 2)})
    )
    assert content == {**plain, "ordered": {"b": 1, "a": 2}, "scalar": 1.5, "set": [7], "t": [1, 2]}


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_names_of_old_and_new_numpy(tmp_path: Path, core: str, protocol: int) -> None:
    content = pickle.dumps(ARRAYS["a"], protocol)
    new, old = b"numpy._core.multiarray", f"{core}.multiarray".encode()
    assert content.count(new) == 1
    if protocol == 4:  # a frame, and names with their lengths
        content = content[:2] + content[11:]
        content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
    else:
        content = content.replace(new, old)
    wrapped = b"\x80\x04}\x8c\x01a" + content[2:-1] + b"s."
    np.testing.assert_array_equal(read_pickle(write_pickle(tmp_path / "a.pkl", wrapped))["a"], ARRAYS["a"])


def test_a_file_of_python_2(tmp_path: Path) -> None:
    """Written by cPickle of Python 2, such as Caffe2's weights: names and bytes are strings without encoding."""
    values = np.float32([1.5, -3.25, 1e-30])
    content = (
        b"\x80\x02}q\x01U\x05blobsq\x02}q\x03U\x07conv1_wq\x04"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\x09Rq\x0a"
        b"(K\x01K\x03\x85q\x0bcnumpy\ndtype\nq\x0cU\x02f4q\x0dK\x00K\x01\x87q\x0eRq\x0f"
        b"(K\x03U\x01<q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b"
        b"\x89U\x0c" + values.tobytes() + b"q\x12tq\x13bss."
    )
    np.testing.assert_array_equal(read_pickle(write_pickle(tmp_path / "a.pkl", content))["blobs"]["conv1_w"], values)


def test_weights_are_read_from_their_wrappers(tmp_path: Path) -> None:
    file = write_pickle(
        tmp_path / "a.pkl", {"model": {"x": ARRAYS["a"]}, "__author__": "x", "matching_heuristics": True}
    )
    assert torch.equal(read_weights(file)["x"], torch.arange(6.0).view(2, 3))
    file = write_pickle(tmp_path / "b.pkl", {"blobs": {"x": ARRAYS["a"], "y": "no array"}})
    assert read_weights(file).keys() == {"x"}
    torch.save({"model": {"x": torch.ones(2)}}, tmp_path / "c.pkl")
    assert zipfile.is_zipfile(tmp_path / "c.pkl")
    assert torch.equal(read_weights(tmp_path / "c.pkl")["x"], torch.ones(2))


# --- refusals ---------------------------------------------------------------------------------------------------------


class PickledCall:
    """Pickled as a function call that runs on loading."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class CustomClass:
    """An object of a custom class."""


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "os.system": (lambda mark: PickledCall(os.system, f"touch {mark}"), f"{os.name}.system"),
    "eval": (lambda mark: PickledCall(builtins.eval, f"open({str(mark)!r}, 'w')"), "builtin.*eval"),
    "exec": (lambda mark: PickledCall(builtins.exec, f"open({str(mark)!r}, 'w')"), "builtin.*exec"),
    "open": (lambda mark: PickledCall(builtins.open, str(mark), "w"), "_?io.open"),
    "getattr": (lambda mark: PickledCall(getattr, "x", "format"), "builtin.*getattr"),
    "np.save": (lambda mark: PickledCall(np.save, str(mark), 1), "numpy.*save"),
    "np.load": (lambda mark: PickledCall(np.load, str(mark), None, True), "numpy.*load"),
    "np.fromfile": (lambda mark: PickledCall(np.fromfile, str(mark)), "numpy.*fromfile"),
    "pickle.loads": (lambda mark: PickledCall(pickle.loads, pickle.dumps(PickledCall(os.getcwd))), "pickle.loads"),
    "torch.load": (lambda mark: PickledCall(torch.load, str(mark)), "torch.serialization.load"),
    "own class": (lambda mark: CustomClass(), "test_safe_pickle.CustomClass"),
    "defaultdict": (lambda mark: collections.defaultdict(os.getcwd), "collections.defaultdict"),
}


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_other_globals_are_refused_by_name(tmp_path: Path, name: str, protocol: int) -> None:
    mark = tmp_path / "ran"
    file = write_pickle(tmp_path / "a.pkl", {"model": {"x": HOSTILE[name][0](mark)}}, protocol)
    message = HOSTILE[name][1]
    if protocol == 0 and name == "own class":
        message = "copy_?reg._reconstructor"
    with pytest.raises(ValueError, match=rf"a\.pkl: refused: it asks for '.*{message}', and what is no array"):
        read_weights(file)
    assert not mark.exists()


def test_the_hostile_files_would_have_run(tmp_path: Path) -> None:
    """Otherwise the tests above could not fail."""
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(HOSTILE["os.system"][0](mark)))
    assert mark.exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([PickledCall(os.system, "false")], dtype=object), "array of 'O8', which are no numbers"),
        (np.array([{}, []], dtype=object), "array of 'O8', which are no numbers"),
        (np.array(["text"]), "array of 'U4', which are no numbers"),
        (np.array([b"text"]), "array of 'S4', which are no numbers"),
        (np.zeros(2, dtype=[("a", "f4")]), "array of 'V4', which are no numbers"),
        (np.array([1j]), "array of 'c16', which are no numbers"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "array of 'M8', which are no numbers"),
    ],
    ids=["objects that call", "objects", "text", "bytes", "records", "complex", "dates"],
)
def test_arrays_of_anything_but_numbers_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"a.pkl: refused: it holds an {message}"):
        read_pickle(write_pickle(tmp_path / "a.pkl", {"x": array}))


def array_pickle(shape: bytes, content: bytes, dtype: bytes = b"f4", kind: bytes = b"numpy\nndarray\n") -> bytes:
    """Return a handwritten pickle of an array; shape and content are opcodes."""
    return (
        b"\x80\x02}U\x01xcnumpy.core.multiarray\n_reconstruct\nc" + kind + b"K\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\nU" + bytes([len(dtype)]) + dtype + b"K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + content + b"tbs."
    )


def text(content: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(content)) + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (array_pickle(b"J\xff\xff\xff\x7f\x85", text(b"\0" * 8)), "8 bytes are no array of"),
        (array_pickle(b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", text(b"")), "0 bytes are no array of"),
        (array_pickle(b"J\xff\xff\xff\xff\x85", text(b"")), "whose shape is none"),
        (array_pickle(b"K\x02\x85", text(b"\0" * 4)), "4 bytes are no array of"),
        (array_pickle(b"K\x01\x85", b"(K\x01l"), "array of objects"),
        (array_pickle(b"K\x01\x85", b"]", dtype=b"O8"), "array of 'O8'"),
        (array_pickle(b"U\x01a", text(b"\0" * 4)), "whose shape is none"),
        (array_pickle(b"K\x01\x85", text(b"\0" * 4), kind=b"os\nsystem\n"), "refused: it asks for 'os.system'"),
    ],
    ids=["too large", "far too large", "negative", "too few bytes", "list", "objects", "text", "other class"],
)
def test_shapes_and_types_are_validated(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.pkl: .*{message}"):
        read_pickle(write_pickle(tmp_path / "a.pkl", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR.", "array of 'O'"),
        (b"cnumpy\ndtype\n(cos\nsystem\ntR.", "asks for 'os.system'"),
        (b"cnumpy\nndarray\n(J\xff\xff\xff\x7f\x85tR.", "makes an array by itself"),
        (b"c_codecs\nencode\n(U\x01xU\x05rot13tR.", "encodes what are no bytes"),
        (b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x02O8K\x00K\x01tRU\x01xtR.", "array of 'O8'"),
        # Attributes of allowed globals cannot be set: they would persist for the next file.
        (b"ccollections\nOrderedDict\n(N}U\x05_callNstb.", "sets '_call' of a function"),
        (b"ccollections\nOrderedDict\n}U\x05_callNsb.", "damaged"),
        # Opcodes that create objects in other ways.
        (b"(cos\nsystem\nU\x01xo.", "asks for 'os.system'"),
        (b"(U\x01xios\nsystem\n.", "asks for 'os.system'"),
        (b"\x80\x02cos\nsystem\n)\x81.", "asks for 'os.system'"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "damaged"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "asks for 'os.system'"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", "asks for 'numpy.ndarray.dumps'"),
        (b"Pfile\n.", "refers to something outside"),
        (b"U\x01xQ.", "refers to something outside"),
        (b"\x82\x01.", "damaged"),
        (b"\x80\x05\x97.", "damaged"),
    ],
    ids=str,
)
def test_hostile_opcodes(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.pkl: .*{message}"):
        read_pickle(write_pickle(tmp_path / "a.pkl", content))
    # Later files are not affected.
    assert read_pickle(write_pickle(tmp_path / "b.pkl", collections.OrderedDict(a=1), 2)) == {"a": 1}


def test_a_large_memo_index_allocates_no_memory(tmp_path: Path) -> None:
    """LONG_BINPUT with the largest index: the unpickler in C would allocate 64 GiB."""
    assert read_pickle(write_pickle(tmp_path / "a.pkl", b"}r\xff\xff\xff\xff.")) == {}


@pytest.mark.parametrize(
    "content",
    [b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f", b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f", b"\x8b\xff\xff\xff\x7f"],
    ids=["bytes", "bytearray", "number"],
)
def test_lengths_are_validated(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"a\.pkl: is no pickle, or a damaged one"):
        read_pickle(write_pickle(tmp_path / "a.pkl", content + b"x."))


def test_cyclic_and_deeply_nested_objects_are_limited(tmp_path: Path) -> None:
    cyclic: dict[str, Any] = {"x": ARRAYS["a"]}
    cyclic["self"] = cyclic
    content = read_pickle(write_pickle(tmp_path / "a.pkl", cyclic))
    assert content["self"]["x"] is not None and content["self"]["self"] is None
    nested: dict[int, Any] = {}
    for _ in range(40):
        nested = {number: nested for number in range(10)}
    assert len(read_pickle(write_pickle(tmp_path / "b.pkl", nested))) == 10
    deeply_nested = b"(" * 100_000 + b"t" * 100_000 + b"."
    with pytest.raises(ValueError, match="holds no dictionary of arrays"):
        read_pickle(write_pickle(tmp_path / "c.pkl", deeply_nested))


# --- damaged files ----------------------------------------------------------------------------------------------------


def test_truncated_files_raise_a_clear_error(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pickle.dump({"model": {"x": ARRAYS["a"]}}, buffer)
    content = buffer.getvalue()
    for length in range(len(content)):
        file = write_pickle(tmp_path / "a.pkl", content[:length])
        with pytest.raises(ValueError, match=r"a\.pkl: (is no pickle, or a damaged one|refused)"):
            read_pickle(file)


@pytest.mark.parametrize("content", [b"", b"no pickle", b"GIF89a", b"]."], ids=["empty", "text", "image", "list"])
def test_files_without_a_dictionary_raise(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"a\.pkl: (is no pickle, or a damaged one|it holds no dictionary of arrays)"):
        read_pickle(write_pickle(tmp_path / "a.pkl", content))


def test_a_dictionary_without_arrays_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.pkl: there are no tensors in it"):
        read_weights(write_pickle(tmp_path / "a.pkl", {"model": {"x": 1}}))
