"""Damaged and hostile weight files: a model is initialized, or there is one error that names the file.

``python -m tests.faults.fuzz_weights --seed 1 --first 0 --count 20000``
"""

import json
import pickle
import struct
import zipfile
from collections import OrderedDict
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from opabinia.models.weights.init import Init, initialize
from tests.faults.damage import changed_fields
from tests.faults.fuzz_files import failure_of, main, mutated


class Net(nn.Module):
    """A backbone with a norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
        self.head = nn.Linear(5, 3)


@cache
def state() -> dict[str, Tensor]:
    """Return the weights of a network, with an adapter and a buffer of another kind."""
    torch.manual_seed(0)
    weights = dict(Net().state_dict())
    adapter = {"lora_A.default.weight": (2, 4), "lora_B.default.weight": (5, 2), "base_layer.weight": (5, 4)}
    weights |= {f"backbone.9.{name}": torch.ones(shape) for name, shape in adapter.items()}
    return {**weights, "backbone.9.lora_scale": torch.tensor(2.0), "mask": torch.ones(3, dtype=torch.bool)}


@cache
def files() -> dict[str, bytes]:
    """Return valid files of every kind, by suffix and contents."""
    arrays = {name: tensor.numpy() for name, tensor in state().items()}
    wrapped = {"model": state(), "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}, "epoch": 3}
    averaged = {"state_dict": state(), "state_dict_ema": state()}
    ddp = OrderedDict((f"module.{name}", nn.Parameter(tensor.half().float())) for name, tensor in state().items())
    result = {f"{number}.pkl": pickle.dumps(arrays, number) for number in (2, 4)}
    for name, content in {"plain": state(), "wrapped": wrapped, "averaged": averaged, "ddp": ddp}.items():
        for zipped in (True, False):
            result[f"{name}-{zipped}.pth"] = saved(content, zipped)
    result["plain.safetensors"] = save(state(), {"aliases": '{"tied": "head.weight"}'})
    return result


def saved(content: Any, zipped: bool) -> bytes:
    """Return the file that torch.save writes."""
    file = BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(random: Random) -> tuple[str, bytes]:
    """Return suffix and content of a valid file with damage to its bytes, a member of an archive, or a header."""
    name = random.choice(list(files()))
    content, others = files()[name], list(files().values())
    suffix = Path(name).suffix
    if content.startswith(b"PK") and random.random() < 0.7:
        return suffix, _with_damaged_member(content, others, random)
    if suffix == ".safetensors" and random.random() < 0.7:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.dumps(changed_fields(json.loads(content[8 : 8 + size]), random)).encode()
        return suffix, struct.pack("<Q", random.choice([len(header)] * 9 + [2**62])) + header + content[8 + size :]
    return random.choice([suffix] * 9 + [".pth", ".pkl", ".safetensors"]), mutated(content, others, random)


def _with_damaged_member(content: bytes, others: list[bytes], random: Random) -> bytes:
    """Return an archive with valid checksums and other bytes in a member, or a member missing, or compressed."""
    file = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old:
        names = old.namelist()
        changed = random.choice([*names, *(name for name in names if name.endswith("data.pkl")), ""])
        with zipfile.ZipFile(file, "w", random.choice([zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED])) as new:
            for name in names:
                member = old.read(name)
                if name == changed and random.random() < 0.2:
                    continue
                new.writestr(name, mutated(member, others, random) if name == changed else member)
    return file.getvalue()


# --- structures -------------------------------------------------------------------------------------------------------


def tensor(random: Random) -> Any:
    """Return a tensor of an unusual kind, or another value."""
    shape = [random.choice([0, 1, 2, 3, 4, 5, 7]) for _ in range(random.randrange(5))]
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64)
    values = torch.ones(shape)
    match random.randrange(14):
        case 0:
            return values.to(random.choice(kinds))
        case 1:
            return torch.empty(random.choice([[3], [2**40], [2**20, 2**20]]), device="meta")
        case 2:
            return torch.eye(3).to_sparse()
        case 3:
            return torch.ones(1).expand(random.choice([2, 2**20, 2**40]))
        case 4:
            return torch.arange(12.0).reshape(3, 4).t()[1:]
        case 5:
            return values * float("nan")
        case 6:
            return nn.Parameter(values)
        case 7:
            return np.ones(3, random.choice(["f4", "i8", ">f8"]))
        case 8:
            return random.choice([None, 1, "x", (1, (2, [3])), [torch.ones(2)], 10**200, b"x", {1, 2}])
        case 9:
            return torch.ones(3, dtype=random.choice([torch.float8_e4m3fn, torch.uint16, torch.uint8]))
        case _:
            return values


def key(random: Random) -> Any:
    """Return a name of the model, of a wrapper, or none at all."""
    names = ("model", "state_dict", "state_dict_ema", "ema", "teacher", "student", "optimizer", "module", "backbone")
    odd = (0, -1, 2**70, (1, 2), None, True, 1.5, "", ".", "a\nb", "\x1b[31m", "x" * 5000, "\udcff", b"x")
    choice = random.random()
    return random.choice(list(state()) if choice < 0.5 else names if choice < 0.85 else odd)


def structure(random: Random) -> Any:
    """Return nested dictionaries, some of which are in several places, or in themselves."""
    mappings: list[Any] = [dict(state())]
    for _ in range(random.choice([1, 2, 5, 40])):
        mapping: Any = random.choice([dict, OrderedDict])()
        for _ in range(random.choice([1, 2, 3, 12])):
            draw = random.random()
            mapping[key(random)] = (
                mappings[-1] if draw < 0.4 else random.choice(mappings) if draw < 0.5 else tensor(random)
            )
        mappings.append(mapping)
    if random.random() < 0.15:
        random.choice(mappings)[key(random)] = random.choice(mappings)
    if random.random() < 0.2:
        return {**state(), **{name: tensor(random) for name in random.sample(list(state()), 3)}}
    return mappings[-1] if random.random() < 0.95 else random.choice([mappings, torch.ones(2), None, "x"])


def structured(random: Random) -> tuple[str, bytes]:
    """Return suffix and content of a file with a hostile structure."""
    content = structure(random)
    return ".pth", saved(content, random.random() < 0.6)


def case(random: Random, folder: Path) -> str:
    """Initialize a model from a damaged or hostile file."""
    suffix, content = damaged(random) if random.random() < 0.6 else structured(random)
    path = folder / f"damaged{suffix}"
    path.write_bytes(content)
    net = Net()
    before = {name: (value.shape, value.dtype) for name, value in net.state_dict().items()}
    prefixes = ["", "", "", "backbone", "head"]
    init = Init(
        weights=path,
        ema=random.random() < 0.2,
        partial=random.random() < 0.5,
        target_prefix=random.choice(prefixes),
        source_prefix=random.choice([None, None, *prefixes]),
    )
    report, problem = failure_of(lambda: initialize(net, init), str(path))
    if report is not None:
        problem = failure_of(lambda: str(report).encode("utf-8", "backslashreplace"), "")[1]
    after = {name: (value.shape, value.dtype) for name, value in net.state_dict().items()}
    path.unlink()
    return problem or ("" if before == after else "the shapes of the model have changed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("tests.faults.fuzz_weights", case)
