import argparse
import shlex
import warnings
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm as timm_library
import torch
from safetensors.torch import save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from timm.models import adapt_input_conv
from torch import Tensor, nn

from opabinia.engine.checkpointing.checkpoint import Snapshot, save_tensors, write_checkpoint
from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.weights import files, translation
from opabinia.models.weights.init import Init, initialize, load_matching, read_weights
from tests.engine.toys import run_state
from tests.faults.programs import Server

State = dict[str, Tensor]


def randomized(make: Callable[[], nn.Module], seed: int) -> Any:
    torch.manual_seed(seed)
    net = make()
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    return net


class Net(nn.Module):
    """A backbone and a head, as in tasks."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(5, classes))


def assert_same(actual: State, expected: State) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def add_prefix(state: State, prefix: str) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".pth.tar"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}, "epoch": 3},
        lambda state: {"state_dict": add_prefix(state, "module."), "best_acc": 0.7},
        lambda state: {"model_state": add_prefix(state, "_orig_mod.")},
        lambda state: {"teacher": add_prefix(state, "module._orig_mod.")},
        lambda state: {"student": {"model": state}},
        lambda state: {"model": state, "model_ema": {name: 0 * tensor for name, tensor in state.items()}},
        lambda state: {"classy_state_dict": {"base_model": {"model": state}}},
    ],
)
def test_wrappers_of_training_scripts_are_removed(tmp_path: Path, suffix: str, wrap: Any) -> None:
    state = randomized(Net, 0).state_dict()
    torch.save(wrap(state), tmp_path / f"weights{suffix}")
    assert_same(read_weights(tmp_path / f"weights{suffix}"), state)


def test_several_state_dicts_of_a_file_are_distinguished(tmp_path: Path) -> None:
    student, teacher = randomized(Net, 0).state_dict(), randomized(Net, 1).state_dict()
    torch.save({"student": student, "teacher": add_prefix(teacher, "module."), "epoch": 1}, tmp_path / "a.pth")
    net = Net()
    with pytest.raises(
        ValueError, match=r"a.pth: it fits in several ways \(student\.\*.*; teacher\..*set source_prefix"
    ):
        initialize(net, Init(weights=tmp_path / "a.pth"))
    initialize(net, Init(weights=tmp_path / "a.pth", source_prefix="teacher"))
    assert_same(net.state_dict(), teacher)


def test_ema_weights_of_a_file(tmp_path: Path) -> None:
    raw, average = randomized(Net, 0).state_dict(), randomized(Net, 1).state_dict()
    torch.save({"state_dict": raw, "state_dict_ema": average}, tmp_path / "a.pth")
    assert_same(read_weights(tmp_path / "a.pth", ema=True), average)
    torch.save({"state_dict": raw}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match=r"b.pth: it has no averaged weights"):
        read_weights(tmp_path / "b.pth", ema=True)


def test_safetensors_files(tmp_path: Path) -> None:
    state = randomized(Net, 0).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    assert_same(read_weights(tmp_path / "a.safetensors"), state)
    tied = {**state, "again": state["head.1.weight"], "module.x": torch.ones(1)}  # one of several names: no prefix
    save_tensors(tmp_path / "b.safetensors", tied)
    assert_same(read_weights(tmp_path / "b.safetensors"), tied)


def write_run(folder: Path, *, ema: State | None = None) -> tuple[State, State]:
    """Write a run folder with two checkpoints; return the tensors of the best and of the last."""
    states = randomized(Net, 0).state_dict(), randomized(Net, 1).state_dict()
    for step, state in zip((1, 2), states, strict=True):
        tensors = {"model": state, **({"ema": ema} if ema else {})}
        write_checkpoint(folder / "checkpoints" / f"step-{step:08d}", Snapshot(step, tensors, run_state(step)))
    (folder / "checkpoints" / "last").write_text("step-00000002\n")
    (folder / "checkpoints" / "best").write_text("step-00000001\n")
    return states


def test_a_run_gives_its_best_or_else_last_checkpoint(tmp_path: Path) -> None:
    best, last = write_run(tmp_path)
    assert_same(read_weights(tmp_path), best)
    assert_same(read_weights(tmp_path / "checkpoints"), best)
    assert_same(read_weights(tmp_path / "checkpoints" / "step-00000002"), last)
    (tmp_path / "checkpoints" / "best").unlink()
    assert_same(read_weights(tmp_path), last)


def test_ema_weights_of_a_run_replace_the_raw_ones(tmp_path: Path) -> None:
    """If only parameters are averaged, buffers are those of the model."""
    average = {name: tensor for name, tensor in randomized(Net, 2).state_dict().items() if "running" not in name}
    best, _ = write_run(tmp_path, ema=average)
    assert_same(read_weights(tmp_path, ema=True), {**best, **average})
    write_run(tmp_path / "other")
    with pytest.raises(ValueError, match=r"step-00000001: it has no averaged weights \(ema.safetensors\)"):
        read_weights(tmp_path / "other", ema=True)
    write_run(tmp_path / "third", ema={"updates": torch.ones(1)})
    with pytest.raises(ValueError, match=r"ema.safetensors names no tensor of the model"):
        read_weights(tmp_path / "third", ema=True)


class PickledCall:
    """Pickled as a function call that runs on loading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, zipped: bool) -> None:
    mark = tmp_path / "it ran"
    torch.save(
        {"model": {"a": torch.ones(1)}, "x": PickledCall(mark)},
        tmp_path / "a.pth",
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(ValueError, match=r"a.pth: refused: it holds [\w.]+, and what is not plain data can run code"):
        read_weights(tmp_path / "a.pth")
    assert not mark.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_metadata_of_training_scripts_is_read_as_plain_data(tmp_path: Path, zipped: bool) -> None:
    """A full checkpoint of DINO has its arguments; others have a best score of NumPy."""
    state = randomized(Net, 0).state_dict()
    arguments = argparse.Namespace(lr=0.1, output_dir=Path("out"), crops=[96, 224])
    metadata = {"args": arguments, "best": np.float64(0.7), "scores": np.arange(3.0), "epoch": 3}
    torch.save({"model": state, **metadata}, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    assert_same(read_weights(tmp_path / "a.pth"), state)


def test_arrays_of_objects_next_to_tensors_are_refused(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    torch.save({"model": {"a": torch.ones(1)}, "x": np.array([PickledCall(mark)])}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a.pth: "):
        read_weights(tmp_path / "a.pth")
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        lambda state: {"model": state, "args": Fraction(1, 10)},
        lambda state: {"state_dict": state, "args": Fraction(1, 10)},
        lambda state: {**state, "args": Fraction(1, 10)},
    ],
)
def test_the_command_that_a_refusal_names_converts_the_file(warm_server: Server, tmp_path: Path, content: Any) -> None:
    state = randomized(Net, 0).state_dict()
    folder = tmp_path / "with a space"
    folder.mkdir()
    torch.save(content(state), folder / "old.pth")
    with pytest.raises(ValueError, match=r"refused: it holds fractions.Fraction") as caught:
        read_weights(folder / "old.pth")
    assert "\n" not in str(caught.value)  # the log shows messages on one line
    python, option, code, *arguments = shlex.split(str(caught.value).partition("do no harm: ")[2])
    assert (python, option) == ("python", "-c")
    warm_server.run(*arguments, code=code)
    assert_same(read_weights(folder / "old.plain.pth"), state)


REFUSED = r"a\.pth: (cannot be read|is no file of torch\.save|refused)"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pth", b"", r"a.pth: cannot be read: EOFError"),
        ("a.pth", b"hello", REFUSED),
        # Opcodes for which torch's unpickler raises struct.error, OverflowError, MemoryError and AssertionError.
        ("a.pth", b"\x80\x02J\0", REFUSED),
        ("a.pth", b"\x80\x02Y", REFUSED),
        ("a.pth", b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + b"\xff" * 7 + b"\x7f\x85R.", REFUSED),
        ("a.safetensors", b"hello", r"a.safetensors: cannot be read: .*header"),
        ("b.pth", None, r"b.pth: there is no such file or folder"),
        ("", None, "neither a run with a checkpoint nor a checkpoint"),
        ("runs", b"", r"; did you mean .*default\?"),
    ],
)
def test_unreadable_files_raise(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if name == "runs":
        (tmp_path / "runs" / "default" / "checkpoints").mkdir(parents=True)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / name)


def self_reference() -> dict[str, Any]:
    content: dict[str, Any] = {"model": {"w": torch.ones(2)}}
    content["model"]["model"] = content
    return content


def nested(depth: int) -> dict[str, Any]:
    content: dict[str, Any] = {"w": torch.ones(2)}
    for _ in range(depth):
        content = {"state_dict": content}
    return content


def shared(levels: int) -> dict[str, Any]:
    """Return dictionaries with 2^levels paths from the outermost to the tensor."""
    content: dict[str, Any] = {"w": torch.ones(2)}
    for _ in range(levels):
        content = {"left": content, "right": content}
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            self_reference(),
            r"a\.pth: model\.model\..*: dictionaries are nested .*, or contain themselves",
        ),
        (nested(300), r"a\.pth: state_dict\.state_dict\..*: dictionaries are nested more than 32 deep"),
        (shared(40), r"a\.pth: right\.right\..*: dictionaries are nested more than 32 deep"),
        (shared(25), r"a\.pth: .*: more than 10000 entries: dictionaries contain each other many times"),
        ({"epoch": 3}, "a.pth: there are no tensors in it"),
        ({"model": {(1, 2): torch.ones(2)}}, r"a\.pth: model\.: the name of a tensor .* is of type tuple"),
        ({"model": {10**100: torch.ones(2)}}, r"a\.pth: model\.: the name of a tensor .* is of type int"),
        ({"x.w": torch.ones(2, device="meta")}, r"a\.pth: x\.w: the tensor has a shape but no values \(device meta\)"),
        ({"a\nb": torch.eye(3).to_sparse()}, r"a\.pth: a\\nb: the tensor is sparse, quantized or nested"),
        ({"w": torch.ones(1).expand(2**40)}, r"a\.pth: w: the tensor claims 1099511627776 values, .* has 4 bytes"),
    ],
    ids=["circle", "deep", "paths", "shared", "no tensors", "tuple", "number", "meta", "sparse", "expanded"],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize("zipped", [True, False])
def test_hostile_structures_are_one_error_at_once(
    tmp_path: Path, content: Any, message: str, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_ENTRIES", 10_000)
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=message) as caught:
        initialize(Net(), Init(weights=tmp_path / "a.pth"))
    assert "\n" not in str(caught.value)


def test_repeated_values_and_dictionaries_are_read(tmp_path: Path) -> None:
    """A state dict under two keys, and tensors that ``expand`` returned."""
    state = {"w": torch.ones(1).expand(1000), "b": torch.arange(6).expand(1, -1)}
    torch.save({"model": state, "state_dict_ema": state, "options": {(1, 2): 3}}, tmp_path / "a.pth")
    for ema in (False, True):
        assert_same(read_weights(tmp_path / "a.pth", ema=ema), state)


def test_damaged_and_compressed_archives(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1_000_000)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"b\.pth: refused: it claims 400\d+ bytes of content, and has \d+$"):
        read_weights(tmp_path / "b.pth")
    content = (tmp_path / "a.pth").read_bytes()
    for length in (4, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "a.pth").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"a\.pth: cannot be read: truncated or damaged \("):
            read_weights(tmp_path / "a.pth")


def test_numbers_of_another_kind_do_not_fill_weights(tmp_path: Path) -> None:
    state = randomized(Net, 0).state_dict()
    for kind in (torch.uint8, torch.int64, torch.complex64):
        torch.save({**state, "head.1.weight": state["head.1.weight"].to(kind)}, tmp_path / "a.pth")
        report = initialize(net := Net(), Init(weights=tmp_path / "a.pth"))
        assert dict(report.other_shape) == {"head.1.weight": f"3x5 -> 3x5 (of {str(kind)[6:]})"}
        assert torch.equal(net.state_dict()["backbone.0.weight"], state["backbone.0.weight"])


def test_adapters_that_do_not_fit_their_weights(tmp_path: Path) -> None:
    up, down, base = torch.ones(4, 2), torch.ones(2, 3), torch.ones(4, 3)
    names = ("q.lora_B.default.weight", "q.lora_A.default.weight", "q.base_layer.weight", "q.lora_scale")
    for tensors in ((torch.ones(1000, 2), down, base), (up, torch.ones(3, 3), base), (torch.ones(4), down, base)):
        save_file(dict(zip(names, (*tensors, torch.tensor(2.0)), strict=True)), tmp_path / "a.safetensors")
        with pytest.raises(ValueError, match=r"a\.safetensors: q: its adapter of .* does not fit its weight"):
            read_weights(tmp_path / "a.safetensors")
    for missing in range(3):
        content = dict(zip(names, (up, down, base, torch.tensor(2.0)), strict=True))
        del content[names[missing]]
        save_file(content, tmp_path / "a.safetensors")
        with pytest.raises(ValueError, match=r"a\.safetensors: q: its adapter has no"):
            read_weights(tmp_path / "a.safetensors")


def test_tensors_that_do_not_fit_their_names_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def translate(weights: Any) -> State:
        return {"w": weights["known.w"].reshape(7, 7)}

    monkeypatch.setattr(translation, "FORMAT_MODULES", [])
    monkeypatch.setattr(translation, "_formats", [translation.WeightFormat("known.", "its names", "rgb", translate)])
    for name in ("known.w", "known.v"):
        save_file({name: torch.ones(2)}, tmp_path / "a.safetensors")
        with pytest.raises(ValueError, match=r"a\.safetensors: its names are .*, its tensors are not"):
            initialize(Net(), Init(weights=tmp_path / "a.safetensors"))


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["", "module.", "model.", "a.b.c."])
@pytest.mark.parametrize("ours", ["", "student.", "model.net."])
def test_prefixes_on_either_side_are_found(file: str, ours: str) -> None:
    source, target = randomized(Net, 0), randomized(Net, 1)
    outer: nn.Module = target
    for name in reversed(ours.split(".")[:-1]):
        holder = nn.Module()
        holder.add_module(name, outer)
        outer = holder
    report = load_matching(outer, add_prefix(source.state_dict(), file))
    assert_same(target.state_dict(), source.state_dict())
    assert report.complete
    assert report.prefixes == ((file, ours),) or file.endswith(ours)
    assert report.loaded == tuple(outer.state_dict())


def test_a_backbone_alone_and_the_backbone_of_a_task() -> None:
    source, target = randomized(Net, 0), randomized(Net, 1)
    head = {name: tensor.clone() for name, tensor in target.head.state_dict().items()}
    report = load_matching(target, source.backbone.state_dict())
    assert_same(target.backbone.state_dict(), source.backbone.state_dict())
    assert_same(target.head.state_dict(), head)
    assert report.missing == ("head.1.weight", "head.1.bias")
    assert not report.complete

    alone = randomized(Net, 2).backbone
    report = load_matching(alone, source.state_dict())
    assert_same(alone.state_dict(), source.backbone.state_dict())
    assert report.unexpected == ("head.1.weight", "head.1.bias")


@pytest.mark.parametrize("model", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "test_mambaout"])
@torch.no_grad()
def test_timms_classifier_and_a_task_exchange_weights(model: str) -> None:
    """The classifier is inside timm's model, but separate from the task's backbone."""
    source = randomized(lambda: timm_library.create_model(model, num_classes=7), 0).eval()
    backbone = timm(3, model=model)
    assert isinstance(backbone, TimmBackbone)
    task = nn.ModuleDict({"backbone": backbone, "head": nn.Sequential(nn.Dropout(), backbone.make_head(7))}).eval()
    assert load_matching(task, source.state_dict()).complete
    images = torch.rand(2, 3, 160, 160)
    logits = task["head"](task["backbone"](images))
    torch.testing.assert_close(logits, source(images))

    other = randomized(lambda: timm_library.create_model(model, num_classes=7), 1).eval()
    assert load_matching(other, task.state_dict()).complete
    torch.testing.assert_close(other(images), logits)


def test_source_prefix_selects_a_part_of_a_file() -> None:
    query, key = randomized(Net, 0), randomized(Net, 1)
    weights = {**add_prefix(query.state_dict(), "encoder_q."), **add_prefix(key.state_dict(), "encoder_k.")}
    weights["queue"] = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"several ways \(encoder_k\.\* as \*; encoder_q\.\* as \*\)"):
        load_matching(Net(), weights)
    net = Net()
    report = load_matching(net, weights, source_prefix="encoder_k")
    assert_same(net.state_dict(), key.state_dict())
    assert report.complete, "other tensors of the file are ignored"
    with pytest.raises(
        ValueError, match=r"source_prefix: no name begins with 'encoder\.'; names: encoder_q.backbone.0.weight, "
    ):
        load_matching(net, weights, source_prefix="encoder")


def test_a_model_with_two_equal_parts_needs_target_prefix() -> None:
    pair = nn.ModuleDict({"student": Net(), "teacher": Net()})
    with pytest.raises(ValueError, match=r"\* as student\.\*; \* as teacher\.\*\).*target_prefix"):
        load_matching(pair, randomized(Net, 0).state_dict())


def test_include_selects_tensors_of_the_model() -> None:
    source, target = randomized(Net, 0), randomized(Net, 1)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    report = load_matching(target, source.state_dict(), include=r"^head|3\.bias")
    assert report.loaded == ("backbone.3.bias", "head.1.weight", "head.1.bias")
    assert report.complete
    expected = {name: source.state_dict()[name] if name in report.loaded else before[name] for name in before}
    assert_same(target.state_dict(), expected)
    with pytest.raises(ValueError, match=r"include: no tensor of the model has 'tail' in its name: backbone.0.weight"):
        load_matching(target, source.state_dict(), include="tail")
    with pytest.raises(ValueError, match=r"include: '\[' is not a regular expression"):
        load_matching(target, source.state_dict(), include="[")


@pytest.mark.parametrize(
    "weights",
    [
        {"something": torch.ones(3)},
        {"else.weight": torch.ones(3, 5), "else.bias": torch.ones(3)},  # shaped like the head, under other names
        {"head.1.weight": torch.ones(9, 9)},
        {"backbone.1.num_batches_tracked": torch.tensor(7), "backbone.1.weight": torch.ones(9)},  # counters are no fit
        {f"layers.{number}.0.weight": torch.ones(5, 4) for number in range(30)},
    ],
)
def test_weights_that_do_not_fit_raise(weights: State) -> None:
    net = randomized(Net, 0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ValueError, match=r"nothing fits: the file has .*; the model has backbone.0.weight, "):
        load_matching(net, weights)
    assert_same(net.state_dict(), before)


def test_shifted_stage_widths_do_not_fit() -> None:
    """Each stage of the file is as wide as the next stage of the model."""

    def stages(*widths: int) -> nn.Module:
        layers = {f"layer{n}": nn.Sequential(nn.Conv2d(w, w, 1), nn.BatchNorm2d(w)) for n, w in enumerate(widths)}
        return nn.ModuleDict({"backbone": nn.ModuleDict(layers)})

    with pytest.raises(
        ValueError, match=r"nothing fits.*of another shape: backbone.layer0.0.weight 8x8x1x1 -> 4x4x1x1"
    ):
        load_matching(stages(4, 8, 16), stages(8, 16, 32).state_dict())


def test_coincidental_matches_are_no_fit() -> None:
    """Networks of other families share a few names and shapes by coincidence."""
    source = {f"layers.{number}.norm.weight": torch.ones(7) for number in range(20)}
    source["layers.0.attn.proj.bias"] = torch.ones(64)
    model = timm(3, model="test_vit")
    assert model.get_parameter("model.blocks.0.attn.proj.bias").shape == (64,)
    with pytest.raises(ValueError, match="nothing fits"):
        load_matching(model, source)


@pytest.mark.parametrize("target_prefix", ["", "backbone"])
def test_a_partly_loaded_backbone_is_refused(tmp_path: Path, target_prefix: str) -> None:
    """A ResNet-18 has stages whose tensors have the names and shapes of a smaller network."""
    torch.save(timm_library.create_model("resnet18").state_dict(), tmp_path / "a.pth")
    task = nn.ModuleDict({"backbone": timm(3, model="resnet18", options={"layers": [3, 2, 2, 2]})})
    before = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    message = r"a.pth: 10 of 130 tensors of the backbone are not filled.*partial: true(.|\n)*missing .*layer1\.2\.conv1"
    with pytest.raises(ValueError, match=message):
        initialize(task, Init(weights=tmp_path / "a.pth", target_prefix=target_prefix))
    assert_same(task.state_dict(), before)
    report = initialize(task, Init(weights=tmp_path / "a.pth", target_prefix=target_prefix, partial=True))
    assert len(report.loaded) == 120 and len(report.missing) == 10
    only = Init(weights=tmp_path / "a.pth", target_prefix=target_prefix, include="layer4")
    assert not initialize(task, only).missing


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_weights_of_another_head_are_refused(tmp_path: Path) -> None:
    """Most layers of the file's head differ; a different number of classes alone would be accepted."""
    net, other = randomized(Net, 0), randomized(Net, 1)
    other.head = nn.Sequential(nn.Dropout(), nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net.head.extend([nn.Identity(), nn.PReLU(), nn.PReLU(), nn.PReLU()])
    torch.save(other.state_dict(), tmp_path / "a.pth")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(ValueError, match=r"a\.pth: 3 of 5 tensors of the head are not filled, .*; missing in the file"):
        initialize(net, Init(weights=tmp_path / "a.pth"))
    assert_same(net.state_dict(), before)
    assert len(initialize(net, Init(weights=tmp_path / "a.pth", partial=True)).missing) == 2
    assert len(initialize(Net(), Init(weights=tmp_path / "a.pth")).unexpected) == 4


def test_a_classifier_of_other_classes_is_skipped() -> None:
    source, target = randomized(lambda: Net(9), 0), randomized(Net, 1)
    before = target.head[1].weight.clone()
    report = load_matching(target, source.state_dict())
    assert report.other_shape == {"head.1.weight": "9x5 -> 3x5", "head.1.bias": "9 -> 3"}
    assert torch.equal(target.head[1].weight, before)
    assert_same(target.backbone.state_dict(), source.backbone.state_dict())
    assert not report.complete


def vit(**options: Any) -> Any:
    return timm_library.create_model("test_vit", num_classes=0, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"img_size": 96},
        {"img_size": 224},
        {"img_size": (96, 160)},
        {"img_size": 96, "class_token": False, "global_pool": "avg"},
        {"img_size": 96, "no_embed_class": True},
        {"img_size": 96, "reg_tokens": 4},
    ],
)
def test_position_embeddings_are_resized_as_in_timm(options: dict[str, Any]) -> None:
    source = randomized(lambda: vit(**{**options, "img_size": 160}), 0)
    target = randomized(lambda: vit(**options), 1)
    report = load_matching(target, source.state_dict())
    assert report.complete
    (shapes,) = report.resized.values()
    ahead = source.pos_embed.shape[1] - 100
    grid = list(target.patch_embed.grid_size)
    expected = resample_abs_pos_embed(source.pos_embed, grid, [10, 10], num_prefix_tokens=ahead)
    torch.testing.assert_close(target.pos_embed, expected)
    assert shapes == f"1x{100 + ahead}x64 -> 1x{grid[0] * grid[1] + ahead}x64"


class Positions(nn.Module):
    """A third-party model that does not report its grid."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.arange(float(tokens * 2)).reshape(1, tokens, 2))
        self.norm = nn.LayerNorm(2)


@pytest.mark.parametrize(("old", "new", "ahead"), [(16, 64, 0), (17, 65, 1), (21, 9, 5), (18, 66, 2)])
def test_position_embeddings_of_models_without_a_reported_grid(old: int, new: int, ahead: int) -> None:
    assert load_matching(Positions(3), Positions(7).state_dict()).other_shape == {"pos_embed": "1x7x2 -> 1x3x2"}
    source, target = Positions(old), Positions(new)
    assert list(load_matching(target, source.state_dict()).resized) == ["pos_embed"]
    assert torch.equal(target.pos_embed[:, :ahead], source.pos_embed[:, :ahead])
    side = int((new - ahead) ** 0.5)
    expected = resample_abs_pos_embed(source.pos_embed, [side, side], num_prefix_tokens=ahead)
    torch.testing.assert_close(target.pos_embed, expected)


def test_relative_position_tables_are_resized_as_in_timm() -> None:
    def swin(window: int) -> Any:
        options = {"embed_dim": 8, "depths": (2,), "num_heads": (2,), "img_size": 16 * window}
        return timm_library.create_model("swin_tiny_patch4_window7_224", num_classes=0, window_size=window, **options)

    source, target = randomized(lambda: swin(4), 0), randomized(lambda: swin(6), 1)
    weights = source.state_dict()
    weights["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16)  # older files have it
    report = load_matching(target, weights)
    name = "layers.0.blocks.1.attn.relative_position_bias_table"
    assert report.resized[name] == "49x2 -> 121x2"
    with warnings.catch_warnings(action="ignore"):
        expected = resize_rel_pos_bias_table(source.state_dict()[name], (6, 6), (121, 2))
    torch.testing.assert_close(target.state_dict()[name], expected)
    assert report.complete


@pytest.mark.parametrize(("old", "new"), [(3, 1), (3, 4), (3, 6), (1, 3), (4, 3)])
def test_the_first_convolution_is_adapted_to_its_input_channels(old: int, new: int) -> None:
    source = randomized(lambda: timm(old, model="test_resnet"), 0)
    target = randomized(lambda: timm(new, model="test_resnet"), 1)
    report = load_matching(target, source.state_dict())
    assert list(report.resized) == ["model.conv1.0.weight"] or list(report.resized) == ["model.conv1.weight"]
    (name,) = report.resized
    weight = source.state_dict()[name]
    torch.testing.assert_close(target.state_dict()[name], adapt_input_conv(new, weight.clone(), base_chans=old))
    grey = torch.rand(1, 1, 8, 8)
    if new == 1:  # grey images and their RGB copies have the same outputs
        expected_output = nn.functional.conv2d(grey.expand(-1, old, -1, -1), weight)
        torch.testing.assert_close(nn.functional.conv2d(grey, target.state_dict()[name]), expected_output)


def test_other_convolutions_are_not_adapted() -> None:
    def net(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, width, 1), nn.Conv2d(width, 4, 1), nn.Conv2d(4, 5, 1))

    report = load_matching(net(8), net(6).state_dict())
    assert report.other_shape.keys() == {"0.weight", "0.bias", "1.weight"}
    assert not report.resized


# --- init: ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_prefix": "bakbone"}, "target_prefix: the task has no 'bakbone'; it has: backbone, head"),
        ({"strict": True}, r"(?s)^strict: not everything fits; .*: 9 of 11 .*head.1.weight 3x5 -> 9x5"),
    ],
)
def test_invalid_init_options_raise(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_run(tmp_path)
    with pytest.raises(ValueError, match=message):
        initialize(Net(9), Init(weights=tmp_path, **options))


def test_the_backbone_of_a_run_initializes_another_task(tmp_path: Path) -> None:
    best, _ = write_run(tmp_path)
    task = randomized(lambda: Net(9), 5)
    head = task.head[1].weight.clone()
    report = initialize(task, Init(weights=tmp_path, target_prefix="backbone", strict=True))
    assert report.complete
    assert_same(
        task.backbone.state_dict(), {n.removeprefix("backbone."): t for n, t in best.items() if "backbone" in n}
    )
    assert torch.equal(task.head[1].weight, head)


def test_text_of_the_report() -> None:
    weights = add_prefix(randomized(lambda: Net(9), 0).state_dict(), "module.net.")
    weights["module.net.backbone.0.weight"] = torch.ones(4, 1, 3, 3)
    del weights["module.net.backbone.3.bias"], weights["module.net.backbone.1.num_batches_tracked"]  # not reported
    weights.update({f"module.net.queue.{number}": torch.ones(1) for number in range(7)})
    assert str(load_matching(Net(), weights)) == (
        "7 of 10 tensors loaded (module.net.* as *)\n"
        "  resized (1): backbone.0.weight 4x1x3x3 -> 4x3x3x3\n"
        "  missing in the file (1): backbone.3.bias\n"
        "  unexpected in the file (7): module.net.queue.0, module.net.queue.1, module.net.queue.2, module.net.queue.3, "
        "module.net.queue.4 ... (2 more)\n"
        "  skipped, of another shape (2): head.1.weight 9x5 -> 3x5, head.1.bias 9 -> 3"
    )
