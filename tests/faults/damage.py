"""Damage to the files of a run: changed bytes, changed fields, and other objects in their place."""

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from opabinia.engine.checkpointing import checkpoint

VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", "nan", "/etc/passwd", "../../outside", "a\x1b[31m\nb", "\udcff", "9" * 5000),
    *(0, -1, 7, 2**40, 10**30, 0.5, -1e308, float("nan"), float("inf"), [], [[]], ["x"], {}, {"x": 1}, {"": None}),
)
"""Replacements of fields."""


def changed_fields(value: Any, random: Random) -> Any:
    """Return plain data with one field removed, added or replaced, anywhere in it."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match random.randrange(10):
            case 0 if isinstance(value, dict):
                return {name: item for name, item in value.items() if name != key}
            case 0:
                return [item for position, item in enumerate(value) if position != key]
            case 1 if isinstance(value, dict):
                return {**value, random.choice(["x", "", "__class__", "a.b"]): random.choice(VALUES)}
            case 1:
                return [*value, random.choice(VALUES)]
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[key] = changed_fields(value[key], random)
        return copy
    return random.choice(VALUES)


# --- damage to any file -----------------------------------------------------------------------------------------------


def change_bytes(file: Path, random: Random) -> None:
    raw = bytearray(file.read_bytes())
    for _ in range(random.choice([1, 1, 8])):
        if raw:
            raw[random.randrange(len(raw))] = random.randrange(256)
    file.write_bytes(raw)


def cut(file: Path, random: Random) -> None:
    file.write_bytes(file.read_bytes()[: random.randrange(file.stat().st_size + 1)])


def extend(file: Path, random: Random) -> None:
    file.write_bytes(file.read_bytes() + random.choice([b"\0", b"{", b"\n\n", b"\xff" * 100]))


def replace(file: Path, random: Random) -> None:
    file.write_bytes(
        random.choice([b"", b"null", b"[]", b"{}", b"\xff\xfe\0", b"[" * 200_000, b'{"a":' * 50_000, b"- " * 9])
    )


def remove(file: Path, random: Random) -> None:
    file.unlink()


def become_folder(file: Path, random: Random) -> None:
    file.unlink()
    file.mkdir()


def become_link(file: Path, random: Random) -> None:
    file.unlink()
    file.symlink_to(random.choice(["/nowhere", "/dev/null", file.name, ".."]))


ANY: tuple[Callable[[Path, Random], None], ...] = (
    change_bytes,
    cut,
    extend,
    replace,
    remove,
    become_folder,
    become_link,
)

# --- damage to the content of a file ----------------------------------------------------------------------------------


def change_json(file: Path, random: Random) -> None:
    file.write_text(json.dumps(changed_fields(json.loads(file.read_text()), random)))


def change_line(file: Path, random: Random) -> None:
    lines = file.read_text().splitlines()
    number = random.randrange(len(lines))
    lines[number] = json.dumps(changed_fields(json.loads(lines[number]), random))
    file.write_text("\n".join(lines) + "\n")


def change_config(file: Path, random: Random) -> None:
    file.write_text(yaml.safe_dump(changed_fields(yaml.safe_load(file.read_text()), random)))


def change_state(file: Path, random: Random) -> None:
    """Change a field of ``state.json``, with a valid checksum."""
    state = changed_fields(json.loads(file.read_text()), random)
    sign(file, state if isinstance(state, dict) else {"state": state})


def change_header(file: Path, random: Random) -> None:
    """Change a field of a safetensors header, with valid checksums of the checkpoint."""
    raw = file.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    if random.random() < 0.3:
        header["__metadata__"] = {
            "aliases": random.choice(["[]", "{", "[" * 100_000, '{"a": "b"}', '{"a": 1}', "null"])
        }
    else:
        header = changed_fields(header, random)
    text = json.dumps(header).encode()
    size = random.choice([len(text)] * 8 + [0, 2**62])
    file.write_bytes(struct.pack("<Q", size) + text + raw[8 + struct.unpack("<Q", raw[:8])[0] :])
    resign(file)


def resign(file: Path) -> None:
    """Put the size and the checksum of a file of a checkpoint into its ``state.json``."""
    state_file = file.with_name("state.json")
    state = json.loads(state_file.read_text())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    state["files"][file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    sign(state_file, state)


def sign(file: Path, state: dict[str, Any]) -> None:
    state.pop("checksum", None)
    try:
        file.write_bytes(checkpoint._encode_state(state))
    except ValueError:  # NaN and infinity
        file.write_text(json.dumps(state))


def change_pointer(file: Path, random: Random) -> None:
    names = ["step-00000003", "step-99999999", "step-1", "../../x", "/etc", "step-" + "9" * 300, "\x1b[31m", "\0", "."]
    file.write_text(random.choice(names))


def change_array(file: Path, random: Random) -> None:
    raw = file.read_bytes()
    old, new = random.choice(
        [(b"<f4", b"|O8"), (b"<f4", b"<c8"), (b"False", b"True "), (b"(8, ", b"(9, "), (b"(8, ", b"(0, ")]
    )
    file.write_bytes(raw.replace(old, new, 1))


def damages(file: Path) -> tuple[Callable[[Path, Random], None], ...]:
    """Return the kinds of damage for a file."""
    special = {
        ".json": change_state if file.name == "state.json" else change_json,
        ".jsonl": change_line,
        ".yaml": change_config,
        ".safetensors": change_header,
        ".npy": change_array,
        "": change_pointer,
    }.get(file.suffix)
    return ANY if special is None else (*ANY, *[special] * (2 * len(ANY)))


def restore(folder: Path, backup: Path) -> None:
    """Restore a folder from its backup."""
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
