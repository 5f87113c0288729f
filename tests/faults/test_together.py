"""Training with several processes equals training with one: samples, losses, scores, checkpoints, errors."""

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


def assert_same_learning(run: Path, expected_run: Path, losses: float = 2e-5) -> None:
    """Assert the same samples in the same order, and losses that differ by float noise only."""
    assert [line["sample_ids"] for line in steps(run)] == [line["sample_ids"] for line in steps(expected_run)]
    for line, expected in zip(steps(run), steps(expected_run), strict=True):
        assert line["train/loss"] == pytest.approx(expected["train/loss"], abs=losses)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=max(1e-3, 10 * losses))
        assert line["lr"] == expected["lr"]


# --- equal training -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "workers"),
    [(2, 0), (2, 4), (3, 1), (4, 0)],
)
def test_training_does_not_depend_on_the_number_of_processes(
    trained: Trained, one_process_run: Path, processes: int, workers: int
) -> None:
    run = trained("many", processes, f"data.num_workers={workers}")
    assert_same_learning(run, one_process_run)
    assert sum(len(line["sample_ids"]) for line in steps(run)) == steps(run)[-1]["samples"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_training_does_not_depend_on_the_number_of_workers(
    trained: Trained, one_process_run: Path, workers: int
) -> None:
    assert metrics(trained("many", 1, f"data.num_workers={workers}")) == metrics(one_process_run)


VARIANTS = {
    "gradient accumulation": ["train.micro_batch_size=5"],
    "clipped": ["train.step={name: standard, clip_norm: 0.5}"],
    "EMA": ["ema={decay: 0.9}"],
    "frozen at first": ["hooks.freeze={name: freeze, pattern: ^head, until: 7it}"],
    "synchronized batch norm": ["task.backbone.norm=batch", "train.sync_batch_norm=true"],
    "precise batch norm": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true"),
        "hooks.precise={name: precise_bn, every: 10it, batches: 2}",
    ],
    "precise batch norm of other data": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true"),
        "hooks.precise={name: precise_bn, data: val, every: 10it, batches: 5}",
    ],
    "synchronized batch norm in half precision": [
        *("task.backbone.norm=batch", "train.sync_batch_norm=true", "train.precision=bf16"),
    ],
    "balanced samples": ["data.sampler={name: balanced}"],
    "progressive sizes": ["shapes={name: progressive, start: 4, end: 8, multiple: 4}"],
    "a teacher": ["distill={run: ALONE}"],
    "its EMA as a teacher": ["distill={teachers: [{run: ALONE}], ema_teacher: {decay: 0.8}}"],
    "half precision": ["train.precision=bf16"],
    "a static graph": ["train.parallel={name: ddp, static_graph: true}"],
    "a static graph with gradient accumulation": [
        "train.parallel={name: ddp, static_graph: true}",
        "train.micro_batch_size=5",
    ],
    "unused parameters": ["train.parallel={name: ddp, find_unused_parameters: true}"],
    "sharded": ["train.parallel={name: fsdp, min_num_params: 100}"],
    "sharded with precise batch norm": [
        *(
            "train.parallel={name: fsdp}",
            "task.backbone.norm=batch",
            "train.sync_batch_norm=true",
            "ema={decay: 0.9}",
        ),
        "hooks.precise={name: precise_bn, every: 10it, batches: 2}",
    ],
    "sharded with gradient accumulation": ["train.parallel={name: fsdp}", "train.micro_batch_size=5"],
    "sharded and clipped": ["train.parallel={name: fsdp}", "train.step={name: standard, clip_each: 0.2}"],
    "sharded with a teacher": ["train.parallel={name: fsdp}", "distill={run: ALONE}"],
    "sharded with its EMA as a teacher": [
        *(
            "train.parallel={name: fsdp, min_num_params: 100}",
            "distill={features_weight: 0.5, ema_teacher: {decay: 0.8}}",
        ),
    ],
    "sharded with EMA": ["train.parallel={name: fsdp}", "ema={decay: 0.9}"],
    "sharded and frozen": ["train.parallel={name: fsdp}", "hooks.freeze={name: freeze, pattern: ^head}"],
    "sharded in half precision": ["train.parallel={name: fsdp, param_dtype: bf16, reduce_dtype: fp32}"],
    "sharded with a shared step counter": ["train.parallel={name: fsdp}", "optimizer={name: lamb, lr: 0.01}"],
    "sharded with LARS": ["train.parallel={name: fsdp}", "optimizer={name: lars, lr: 0.5}"],
}


QUICK = ("gradient accumulation",)


@pytest.mark.parametrize(
    "variant",
    [pytest.param(variant, marks=() if variant in QUICK else pytest.mark.slow) for variant in VARIANTS],
)
def test_every_variant_trains_the_same_on_three_processes(
    trained: Trained, one_process_run: Path, variant: str
) -> None:
    overrides = [override.replace("ALONE", str(one_process_run)) for override in VARIANTS[variant]]
    if "norm" in variant:
        # A single sample has no variance.
        overrides = [*overrides, "data.drop_last=true"]
    three_processes = trained("three", 3, *overrides)
    if "param_dtype" in str(overrides):  # which one process ignores
        overrides = [*overrides, "train.precision=bf16"]
    one_process = trained("one", 1, *overrides)
    assert_same_learning(three_processes, one_process, 0.02 if "half" in variant else 1e-4)
    # A bias before a batch norm has no gradient but noise, which Adam scales up: it moves the running statistics.
    tolerance = 0.04 if "norm" in variant else 0.02
    for actual, expected in zip(scores(three_processes), scores(one_process), strict=True):
        for name, value in expected.items():
            assert actual[name] == pytest.approx(value, abs=tolerance), name


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients(trained: Trained, one_process_run: Path, compression: str) -> None:
    run = trained("half", 2, f"train.parallel={{name: ddp, compression: {compression}}}")
    assert_same_learning(run, one_process_run, 0.05) if compression == "fp16" else None
    assert steps(run)[-1]["train/loss"] == pytest.approx(steps(one_process_run)[-1]["train/loss"], abs=0.1)
    assert steps(run)[5]["grad_norm"] != steps(one_process_run)[5]["grad_norm"]


REFUSED = {
    "is not contiguous.*fsdp excludes train.channels_last": [
        *("train.parallel=fsdp", "train.channels_last=true", "task.backbone={name: timm, model: test_resnet}"),
    ],
    "use {name: ddp, find_unused_parameters: true}": ["task.backbone={name: forgetful}"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_combinations_are_reported(
    server: Server, multi_process_recipe: Path, tmp_path: Path, message: str
) -> None:
    programs = start(server, 2, str(multi_process_recipe), "--out", str(tmp_path), *REFUSED[message])
    for program in programs:
        program.expect(2)
    log = "".join(program.err for program in programs)
    assert len(re.findall(message, log)) == 1 and "Traceback" not in log


def test_intervals_in_hours_agree_between_processes(trained: Trained) -> None:
    folder = trained("hours", 2, "checkpoint.every=0.00001h", "evaluate.every=0ep")
    assert len(list((folder / "checkpoints").glob("step-*"))) > 1


# --- evaluation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [91, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_are_bitwise_identical(
    server: Server, trained: Trained, one_process_run: Path, samples: int, tmp_path: Path
) -> None:
    """With a number of samples that is not divisible, and with fewer samples than processes."""
    name = "val" if samples == 91 else "few"  # scores of other data than the run's have a name of their own
    named = () if name == "val" else ("--name", name)
    results = []
    for processes in (1, 3):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if processes > 1 else {}
        programs = [
            server.start(
                *("eval", str(one_process_run), f"data.val.source.n={samples}", "evaluate.batch_size=1", *named),
                environment={**address, "RANK": str(rank), "WORLD_SIZE": str(processes)},
            )
            for rank in range(processes)
        ]
        for program in programs:
            program.expect(0)
        results.append((one_process_run / "eval" / name / "scores.json").read_text())
    assert results[0] == results[1]


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_fewer_evaluation_batches_than_processes(trained: Trained, parallel: str) -> None:
    overrides = ("train.length=5it", "data.val.source.n=21", f"train.parallel={parallel}")
    three_processes, one_process = trained("three", 3, *overrides), trained("one", 1, *overrides)
    for actual, expected in zip(scores(three_processes), scores(one_process), strict=True):
        assert actual["val/top1"] == expected["val/top1"]


# --- resuming -------------------------------------------------------------------------------------------------------


def cut_back(folder: Path, step: int) -> None:
    """Make the folder that of a run killed after the checkpoint of this step."""
    (folder / "checkpoints" / "last").write_text(f"step-{step:08d}\n")
    (folder / "results.json").unlink()


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "{name: fsdp, min_num_params: 100}"])
@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_of_two_processes_resumes_on_another_number(
    server: Server, trained: Trained, parallel: str, processes: int
) -> None:
    folder = trained("run", 2, f"train.parallel={parallel}", "ema={decay: 0.9}")
    before = [{**line} for line in metrics(folder)]
    cut_back(folder, 10)
    for program in start(server, processes, str(folder), "--resume"):
        program.expect(0)
    after = metrics(folder)
    assert [line.get("sample_ids") for line in after] == [line.get("sample_ids") for line in before]
    for line, expected in zip(after, before, strict=True):
        assert line.get("train/loss") == pytest.approx(expected.get("train/loss"), abs=2e-5)
        assert line.get("val_ema/top1") == pytest.approx(expected.get("val_ema/top1"), abs=0.02)


@pytest.mark.parametrize(
    ("parallel", "average"),
    [
        pytest.param("ddp", "ema={decay: 0.9}", marks=pytest.mark.slow),
        pytest.param("ddp", "distill={ema_teacher: {decay: 0.9}}", marks=pytest.mark.slow),
        ("fsdp", "ema={decay: 0.9}"),
        pytest.param("fsdp", "distill={ema_teacher: {decay: 0.9}}", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_process_stops_both_and_resuming_is_exact(
    server: Server, multi_process_recipe: Path, trained: Trained, tmp_path: Path, parallel: str, average: str
) -> None:
    """With batch norm, whose running statistics differ between processes, and a stop at a step without a checkpoint."""
    overrides = (f"train.parallel={parallel}", "task.backbone.norm=batch", "data.drop_last=true", average)
    uninterrupted = trained("uninterrupted", 2, *overrides)
    command = (str(multi_process_recipe), "--out", str(tmp_path), "--name", "stopped", *overrides)
    programs = start(server, 2, *command, environment={PAUSE: "after_backward 12"})
    for program in programs:
        program.until_paused()
    programs[1].signal(signal.SIGTERM)
    for program in programs:
        program.unpause()
    for program in programs:
        program.expect(143)
    folder = tmp_path / "together" / "stopped"
    assert (folder / "checkpoints" / "last").read_text() == "step-00000013\n"
    for program in start(server, 2, str(folder), "--resume"):
        program.expect(0)
    assert metrics(folder) == metrics(uninterrupted)
    for file in sorted(checkpoint(uninterrupted, STEPS).rglob("*.safetensors")):
        assert file.read_bytes() == (folder / file.relative_to(uninterrupted)).read_bytes(), file.name


def test_torch_reads_a_sharded_checkpoint(server: Server, trained: Trained) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    folder = trained("sharded", 2, "train.parallel=fsdp", "train.length=5it")
    path = checkpoint(folder, 5)
    tensors = read_checkpoint(path).tensors["model"]
    read_by_torch = {name: torch.zeros_like(tensors[name]) for name in tensors}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that there is one process only
        dcp.load(read_by_torch, storage_reader=HuggingFaceStorageReader(str(path / "model")), no_dist=True)
    assert all(torch.equal(read_by_torch[name], tensors[name]) for name in tensors)


# --- non-finite numbers ---------------------------------------------------------------------------------------------

POISON = ("data.train={source: {name: poisoned, n: 65, sample: 40}}", "checkpoint.every=4it", "train.length=10it")


POISONED_ID = Digits(split="train")[40]["id"]


@pytest.fixture(scope="session")
def poisoned_steps(one_process_run: Path) -> list[int]:
    """Return the steps (from 1 on) with the poisoned sample in their batch."""
    return [line["step"] for line in steps(one_process_run) if POISONED_ID in line["sample_ids"] and line["step"] <= 10]


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "{name: fsdp, min_num_params: 100}"])
def test_a_non_finite_layer_of_one_process_is_named(
    server: Server, multi_process_recipe: Path, tmp_path: Path, parallel: str
) -> None:
    overrides = ("data.train={source: {name: huge, n: 65, sample: 40}}", f"train.parallel={parallel}")
    programs = start(
        server, 2, str(multi_process_recipe), "--out", str(tmp_path), "task.backbone={name: explosive}", *overrides
    )
    for program in programs:
        program.expect(1)
    log = "".join(program.err for program in programs)
    assert len(re.findall(r"first not finite after layer backbone\.layers\.5 \(Explosive, ", log)) == 1


def test_rollback_stops_if_no_batch_is_finite(server: Server, multi_process_recipe: Path, tmp_path: Path) -> None:
    data = "data={train: {source: {name: poisoned, n: 1, sample: 0}}, batch_size: 1}"
    options = ("train.on_nonfinite=rollback", "train.length=40it", "checkpoint.every=5it", "data.val=null")
    (program,) = start(server, 1, str(multi_process_recipe), "--out", str(tmp_path), data, *options)
    program.expect(1)
    assert "had non-finite values" in program.err and "this run does not converge" in program.err


def test_the_loss_scale_of_fp16_survives_skipped_updates(trained: Trained) -> None:
    folder = trained("fp16", 1, *POISON, "train.on_nonfinite=skip", "train.precision=fp16", "train.length=60it")
    assert steps(folder)[-1]["train/loss_scale"] >= 1024


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_stop_names_the_step_the_loss_and_the_samples(
    server: Server, multi_process_recipe: Path, tmp_path: Path, processes: int, poisoned_steps: list[int]
) -> None:
    programs = start(server, processes, str(multi_process_recipe), "--out", str(tmp_path), *POISON)
    for program in programs:
        program.expect(1)
    log = "".join(program.err for program in programs)
    assert log.count(f"train/loss is nan at step {poisoned_steps[0]}") == 1
    assert "the batch itself is not finite: image" in log and "the weights were not changed" in log
    assert POISONED_ID in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("processes", "parallel", "step"),
    [
        *((1, "ddp", "standard"), (2, "fsdp", "standard")),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in ((1, "ddp", "blind"), (2, "ddp", "standard"), (2, "ddp", "blind"), (2, "fsdp", "blind"))
        ),
    ],
)
def test_skip_skips_the_update(
    server: Server, trained: Trained, processes: int, parallel: str, step: str, poisoned_steps: list[int]
) -> None:
    options = ("train.on_nonfinite=skip", f"train.parallel={parallel}", f"train.step={step}")
    folder = trained("skipped", processes, *POISON, *options)
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
def test_rollback_restores_a_checkpoint_and_skips_the_batch(
    server: Server, trained: Trained, processes: int, step: str, poisoned_steps: list[int]
) -> None:
    folder = trained("rolled", processes, *POISON, "train.on_nonfinite=rollback", f"train.step={step}")
    logged_steps = [line["step"] for line in metrics(folder) if "lr" in line]
    assert logged_steps == list(range(1, 11))  # no gap, nothing twice
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
def test_a_full_disk_is_reported(
    server: Server, multi_process_recipe: Path, tmp_path: Path, parallel: str, kilobytes: int
) -> None:
    """Earlier checkpoints are complete, and no temporary files are left."""
    with mounted(tmp_path / "small", f"size={kilobytes}k") as small:
        overrides = (f"train.parallel={parallel}", "checkpoint.every=2it", "checkpoint.keep=99")
        programs = start(server, 2, str(multi_process_recipe), "--out", str(small), *overrides)
        for program in programs:
            program.wait()
        assert programs[0].status == 1
        log = "".join(program.err for program in programs)
        assert "the disk is full" in log and "Traceback" not in log, log
        checkpoints = small / "together" / "default" / "checkpoints"
        remove_leftovers(checkpoints)  # as the next start does: a process may write after another has failed
        assert not list(checkpoints.glob(".*"))
        for path in checkpoints.glob("step-*"):
            read_checkpoint(path)
