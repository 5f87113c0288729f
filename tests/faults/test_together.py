"""Learning on many processes is learning on one: the same samples, losses, scores, checkpoints, errors."""

import math
import re
import signal
import socket
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from opabinia.runtime.files import remove_leftovers
from tests.faults.many import STEPS, Trained, scores, start, steps
from tests.faults.programs import PAUSE, Server, mounted
from tests.faults.runs import checkpoint, metrics
from tests.faults.test_disk import can_mount


def assert_same_learning(found: Path, expected: Path, losses: float = 2e-5) -> None:
    """The same samples in the same order, and losses that differ by float noise only."""
    assert [line["sample_ids"] for line in steps(found)] == [line["sample_ids"] for line in steps(expected)]
    for one, other in zip(steps(found), steps(expected), strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], abs=losses)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=max(1e-3, 10 * losses))
        assert one["lr"] == other["lr"]


# --- the same learning ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "workers"),
    [(2, 0), (2, 4), (3, 1), (4, 0)],
)
def test_the_same_learning_on_any_number(trained: Trained, alone: Path, processes: int, workers: int) -> None:
    found = trained("many", processes, f"data.num_workers={workers}")
    assert_same_learning(found, alone)
    assert sum(len(line["sample_ids"]) for line in steps(found)) == steps(found)[-1]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_the_same_learning_with_any_number_of_workers(trained: Trained, alone: Path, workers: int) -> None:
    assert metrics(trained("many", 1, f"data.num_workers={workers}")) == metrics(alone)


VARIETIES = {
    "pieces": ["train.micro_batch_size=5"],
    "clipped": ["train.step={name: standard, clip_norm: 0.5}"],
    "averaged": ["ema={momentum: 0.9}"],
    "frozen for a while": ["hooks.freeze={name: freeze, pattern: ^head, until: 7it}"],
    "synchronised norms": ["task.backbone.norm=batch", "train.sync_batch_norm=true"],
    "exact norms": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true"),
        "hooks.precise={name: precise_bn, every: 10it, batches: 2}",
    ],
    "exact norms of other data": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true"),
        "hooks.precise={name: precise_bn, data: val, every: 10it, batches: 5}",
    ],
    "synchronised norms in half precision": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true", "train.precision=bf16"),
    ],
    "balanced samples": ["data.sampler={name: balanced}"],
    "growing images": ["shapes={name: progressive, start: 4, end: 8, multiple: 4}"],
    "a teacher": ["distill={run: ALONE}"],
    "its own average as a teacher": ["distill={teachers: [{run: ALONE}], average: {momentum: 0.8}}"],
    "half precision": ["train.precision=bf16"],
    "a fixed graph": ["train.parallel={name: ddp, static_graph: true}"],
    "a fixed graph in pieces": ["train.parallel={name: ddp, static_graph: true}", "train.micro_batch_size=5"],
    "looking for unused parameters": ["train.parallel={name: ddp, find_unused_parameters: true}"],
    "sharded": ["train.parallel={name: fsdp, min_num_params: 100}"],
    "sharded with exact norms": [
        *(
            "train.parallel={name: fsdp}",
            "task.backbone.norm=batch",
            "train.sync_batch_norm=true",
            "ema={momentum: 0.9}",
        ),
        "hooks.precise={name: precise_bn, every: 10it, batches: 2}",
    ],
    "sharded in pieces": ["train.parallel={name: fsdp}", "train.micro_batch_size=5"],
    "sharded and clipped": ["train.parallel={name: fsdp}", "train.step={name: standard, clip_each: 0.2}"],
    "sharded with a teacher": ["train.parallel={name: fsdp}", "distill={run: ALONE}"],
    "sharded with its own average as a teacher": [
        *(
            "train.parallel={name: fsdp, min_num_params: 100}",
            "distill={features_weight: 0.5, average: {momentum: 0.8}}",
        ),
    ],
    "sharded and averaged": ["train.parallel={name: fsdp}", "ema={momentum: 0.9}"],
    "sharded and frozen": ["train.parallel={name: fsdp}", "hooks.freeze={name: freeze, pattern: ^head}"],
    "sharded in half precision": ["train.parallel={name: fsdp, param_dtype: bf16, reduce_dtype: fp32}"],
    "sharded with a counter that is shared": ["train.parallel={name: fsdp}", "optimizer={name: lamb, lr: 0.01}"],
    "sharded with LARS": ["train.parallel={name: fsdp}", "optimizer={name: lars, lr: 0.5}"],
}


QUICK = ("pieces",)


@pytest.mark.parametrize(
    "variety", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in VARIETIES]
)
def test_the_same_learning_in_every_variety(trained: Trained, alone: Path, variety: str) -> None:
    overrides = [override.replace("ALONE", str(alone)) for override in VARIETIES[variety]]
    if "norm" in variety:
        # One sample alone has no variance worth the name.
        overrides = [*overrides, "data.drop_last=true"]
    three = trained("three", 3, *overrides)
    if "param_dtype" in str(overrides):  # which one process has no use for
        overrides = [*overrides, "train.precision=bf16"]
    one = trained("one", 1, *overrides)
    assert_same_learning(three, one, 0.02 if "half" in variety else 1e-4)
    for found, expected in zip(scores(three), scores(one), strict=True):
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, abs=0.02), name


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_gradients_in_half_the_bytes(trained: Trained, alone: Path, compression: str) -> None:
    found = trained("half", 2, f"train.parallel={{name: ddp, compression: {compression}}}")
    assert_same_learning(found, alone, 0.05) if compression == "fp16" else None
    assert steps(found)[-1]["train/loss"] == pytest.approx(steps(alone)[-1]["train/loss"], abs=0.1)
    assert steps(found)[5]["grad_norm"] != steps(alone)[5]["grad_norm"]


REFUSED = {
    "is not contiguous.*fsdp excludes train.channels_last": [
        *("train.parallel=fsdp", "train.channels_last=true", "task.backbone={name: timm, model: test_resnet}"),
    ],
    "use {name: ddp, find_unused_parameters: true}": ["task.backbone={name: forgetful}"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_combinations_are_reported(server: Server, together: Path, tmp_path: Path, message: str) -> None:
    programs = start(server, 2, str(together), "--out", str(tmp_path), *REFUSED[message])
    for program in programs:
        program.expect(2)
    said = "".join(program.err for program in programs)
    assert len(re.findall(message, said)) == 1 and "Traceback" not in said


def test_hours_are_over_for_all_at_once(trained: Trained) -> None:
    folder = trained("hours", 2, "checkpoint.every=0.00001h", "evaluate.every=0ep")
    assert len(list((folder / "checkpoints").glob("step-*"))) > 1


# --- one number -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [91, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_are_the_same_to_the_last_digit(
    server: Server, trained: Trained, alone: Path, samples: int, tmp_path: Path
) -> None:
    """A set that does not divide, and one with fewer samples than processes."""
    found = []
    for processes in (1, 3):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if processes > 1 else {}
        programs = [
            server.start(
                *("eval", str(alone), f"data.val.source.n={samples}", "evaluate.batch_size=1"),
                environment={**address, "RANK": str(rank), "WORLD_SIZE": str(processes)},
            )
            for rank in range(processes)
        ]
        for program in programs:
            program.expect(0)
        found.append((alone / "eval" / "val" / "scores.json").read_text())
    assert found[0] == found[1]


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_fewer_evaluation_batches_than_processes(trained: Trained, parallel: str) -> None:
    overrides = ("train.length=5it", "data.val.source.n=21", f"train.parallel={parallel}")
    three, one = trained("three", 3, *overrides), trained("one", 1, *overrides)
    for found, expected in zip(scores(three), scores(one), strict=True):
        assert found["val/top1"] == expected["val/top1"]


# --- going on -------------------------------------------------------------------------------------------------------


def cut_back(folder: Path, step: int) -> None:
    """As if the run had been killed after the checkpoint of this step."""
    (folder / "checkpoints" / "last").write_text(f"step-{step:08d}\n")
    (folder / "results.json").unlink()


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "{name: fsdp, min_num_params: 100}"])
@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_resumed_from_two_processes_on_other_numbers(
    server: Server, trained: Trained, parallel: str, processes: int
) -> None:
    folder = trained("run", 2, f"train.parallel={parallel}", "ema={momentum: 0.9}")
    before = [{**line} for line in metrics(folder)]
    cut_back(folder, 10)
    for program in start(server, processes, str(folder), "--resume"):
        program.expect(0)
    after = metrics(folder)
    assert [line.get("sample_ids") for line in after] == [line.get("sample_ids") for line in before]
    for one, other in zip(after, before, strict=True):
        assert one.get("train/loss") == pytest.approx(other.get("train/loss"), abs=2e-5)
        assert one.get("val_ema/top1") == pytest.approx(other.get("val_ema/top1"), abs=0.02)


@pytest.mark.parametrize(
    ("parallel", "average"),
    [
        pytest.param("ddp", "ema={momentum: 0.9}", marks=pytest.mark.slow),
        pytest.param("ddp", "distill={average: {momentum: 0.9}}", marks=pytest.mark.slow),
        ("fsdp", "ema={momentum: 0.9}"),
        pytest.param("fsdp", "distill={average: {momentum: 0.9}}", marks=pytest.mark.slow),
    ],
)
def test_stopped_in_one_process_and_resumed_exactly(
    server: Server, together: Path, trained: Trained, tmp_path: Path, parallel: str, average: str
) -> None:
    """With a norm whose running statistics differ between processes, and a stop where nothing else is saved."""
    overrides = (f"train.parallel={parallel}", "task.backbone.norm=batch", "data.drop_last=true", average)
    whole = trained("whole", 2, *overrides)
    command = (str(together), "--out", str(tmp_path), "--name", "stopped", *overrides)
    programs = start(server, 2, *command, environment={PAUSE: "after_backward 12"})
    for program in programs:
        program.until_paused()
    programs[1].signal(signal.SIGTERM)
    for program in programs:
        program.go_on()
    for program in programs:
        program.expect(143)
    folder = tmp_path / "together" / "stopped"
    assert (folder / "checkpoints" / "last").read_text() == "step-00000013\n"
    for program in start(server, 2, str(folder), "--resume"):
        program.expect(0)
    assert metrics(folder) == metrics(whole)
    for one in sorted(checkpoint(whole, STEPS).rglob("*.safetensors")):
        assert one.read_bytes() == (folder / one.relative_to(whole)).read_bytes(), one.name


def test_a_sharded_checkpoint_is_what_torch_reads_too(server: Server, trained: Trained) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    folder = trained("sharded", 2, "train.parallel=fsdp", "train.length=5it")
    path = checkpoint(folder, 5)
    ours = read_checkpoint(path).tensors["model"]
    theirs = {name: torch.zeros_like(ours[name]) for name in ours}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process only
        dcp.load(theirs, storage_reader=HuggingFaceStorageReader(str(path / "model")), no_dist=True)
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


# --- numbers that go wrong ------------------------------------------------------------------------------------------

POISON = ("data.train={source: {name: poisoned, n: 65, sample: 40}}", "checkpoint.every=4it", "train.length=10it")


SPOILED = Digits(split="train")[40]["id"]


@pytest.fixture(scope="session")
def poisoned_steps(alone: Path) -> list[int]:
    """The steps (from 1 on) with the sample in their batch."""
    return [line["step"] for line in steps(alone) if SPOILED in line["sample_ids"] and line["step"] <= 10]


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "{name: fsdp, min_num_params: 100}"])
def test_a_layer_that_goes_wrong_in_one_process_is_named(
    server: Server, together: Path, tmp_path: Path, parallel: str
) -> None:
    overrides = ("data.train={source: {name: huge, n: 65, sample: 40}}", f"train.parallel={parallel}")
    programs = start(server, 2, str(together), "--out", str(tmp_path), "task.backbone={name: explosive}", *overrides)
    for program in programs:
        program.expect(1)
    said = "".join(program.err for program in programs)
    assert len(re.findall(r"first not finite after layer backbone\.layers\.5 \(Explosive, ", said)) == 1


def test_rollback_gives_up_where_no_batch_is_finite(server: Server, together: Path, tmp_path: Path) -> None:
    nothing = "data={train: {source: {name: poisoned, n: 1, sample: 0}}, batch_size: 1}"
    how = ("train.on_nonfinite=rollback", "train.length=40it", "checkpoint.every=5it", "data.val=null")
    (program,) = start(server, 1, str(together), "--out", str(tmp_path), nothing, *how)
    program.expect(1)
    assert "had non-finite values" in program.err and "this run does not converge" in program.err


def test_the_scale_of_fp16_survives_updates_left_out(trained: Trained) -> None:
    folder = trained("fp16", 1, *POISON, "train.on_nonfinite=skip", "train.precision=fp16", "train.length=60it")
    assert steps(folder)[-1]["train/loss_scale"] >= 1024


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_stop_names_the_step_the_loss_and_the_samples(
    server: Server, together: Path, tmp_path: Path, processes: int, poisoned_steps: list[int]
) -> None:
    programs = start(server, processes, str(together), "--out", str(tmp_path), *POISON)
    for program in programs:
        program.expect(1)
    said = "".join(program.err for program in programs)
    assert said.count(f"train/loss is nan at step {poisoned_steps[0]}") == 1
    assert "the batch itself is not finite: image" in said and "the weights were not changed" in said
    assert SPOILED in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("processes", "parallel", "step"),
    [
        *((1, "ddp", "standard"), (2, "fsdp", "standard")),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((1, "ddp", "blind"), (2, "ddp", "standard"), (2, "ddp", "blind"), (2, "fsdp", "blind"))
        ),
    ],
)
def test_skip_leaves_the_update_out(
    server: Server, trained: Trained, processes: int, parallel: str, step: str, poisoned_steps: list[int]
) -> None:
    how = ("train.on_nonfinite=skip", f"train.parallel={parallel}", f"train.step={step}")
    folder = trained("skipped", processes, *POISON, *how)
    skipped = [line["step"] for line in metrics(folder) if line.get("train/skipped")]
    assert skipped == poisoned_steps
    assert all(math.isfinite(line["train/loss"]) for line in steps(folder) if line["step"] not in skipped)
    weights = read_checkpoint(checkpoint(folder, 10)).tensors["model"]
    assert all(bool(weights[name].isfinite().all()) for name in weights)
    log = (folder / "train.log").read_text()
    assert f"nan at step {skipped[0]}" in log or step == "blind"
    assert f"1 of the updates before step {skipped[0] + 1} were skipped" in log


@pytest.mark.parametrize(
    ("processes", "step"),
    [(1, "standard"), *(pytest.param(2, step, marks=pytest.mark.slow) for step in ("standard", "blind"))],
)
def test_rollback_goes_back_and_leaves_the_batch_out(
    server: Server, trained: Trained, processes: int, step: str, poisoned_steps: list[int]
) -> None:
    folder = trained("rolled", processes, *POISON, "train.on_nonfinite=rollback", f"train.step={step}")
    found = [line["step"] for line in metrics(folder) if "lr" in line]
    assert found == list(range(1, 11))  # no gap, nothing twice
    assert [line["step"] for line in metrics(folder) if "lr" in line and "train/loss" not in line] == poisoned_steps
    newest = read_checkpoint(checkpoint(folder, 10))
    assert newest.state["left_out"] == [step - 1 for step in poisoned_steps]
    tensors = load_file(checkpoint(folder, 10) / "model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    assert f"the batch of step {poisoned_steps[0]} will be skipped" in (folder / "train.log").read_text()


# --- a full disk ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")
@pytest.mark.parametrize(("parallel", "kilobytes"), [("ddp", 200), ("fsdp", 330)])
def test_a_full_disk_is_reported(server: Server, together: Path, tmp_path: Path, parallel: str, kilobytes: int) -> None:
    """What was saved before is whole, and nothing of the rest is left."""
    with mounted(tmp_path / "small", f"size={kilobytes}k") as small:
        overrides = (f"train.parallel={parallel}", "checkpoint.every=2it", "checkpoint.keep=99")
        programs = start(server, 2, str(together), "--out", str(small), *overrides)
        for program in programs:
            program.wait()
        assert programs[0].status == 1
        said = "".join(program.err for program in programs)
        assert "the disk is full" in said and "Traceback" not in said, said
        checkpoints = small / "together" / "default" / "checkpoints"
        remove_leftovers(checkpoints)  # as the next start does: a process may have written after another has failed
        assert not list(checkpoints.glob(".*"))
        for path in checkpoints.glob("step-*"):
            read_checkpoint(path)
