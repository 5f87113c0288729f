"""Damaged safetensors files are refused by name."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from opabinia.runtime.json_files import InvalidFile
from opabinia.runtime.shards import INFO, ShardedTensors, load_safetensors


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("[]", "aliases: input should be a valid dictionary"),
        ('{"a": 1}', "aliases: a: input should be a valid string"),
        ('{"a": "none"}', "aliases: 'a' is tied to 'none', which is not in the file"),
        ("{", "aliases: not valid JSON"),
        ("[" * 50_000, "aliases: not valid JSON: too deeply nested"),
    ],
    ids=range(5),
)
def test_aliases_are_checked(tmp_path: Path, aliases: str, message: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors", {"aliases": aliases})
    with pytest.raises(InvalidFile, match=rf"a\.safetensors: {message}"):
        load_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b'{"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}'])
def test_headers_are_checked(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(InvalidFile, match=r"a\.safetensors: cannot be read"):
        load_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (None, "input should be a valid dictionary"),
        ("{", "not valid JSON"),
        ('{"w": {}}', "w.saved_offsets: field required"),
        ('{"w": {"saved_offsets": [-1]}}', "w.saved_offsets.0: input should be greater than or equal to 0"),
    ],
)
def test_offsets_of_shards_are_checked(tmp_path: Path, info: str | None, message: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors", {INFO: info} if info else None)
    with pytest.raises(InvalidFile, match=message):
        ShardedTensors([tmp_path / "a.safetensors"])


@pytest.mark.parametrize("offsets", [[2**40], [3], [0], [2, 0], []])
def test_shards_that_do_not_fill_a_tensor_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    for name, offset in (("a", [0]), ("b", offsets)):
        info = json.dumps({"w": {"saved_offsets": offset}})
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors", {INFO: info})
    with pytest.raises(InvalidFile, match="the shards of w do not fill a tensor"):
        ShardedTensors([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])["w"]
