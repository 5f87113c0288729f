"""Training with several processes equals training with one: samples, losses, scores, checkpoints, errors."""

import json
import math
import re
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch

from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from tests.faults.programs import PAUSE
from tests.faults.runs import (
    Run,
    Trained,
    assert_same_learning,
    checkpoint,
    copy_cut_back,
    expect,
    metrics,
    scores,
    start,
    steps,
    weights,
)

FSDP = "{name: fsdp, min_num_params: 100}"

# --- equal training -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "workers"), [(2, 0), (2, 4), (3, 1), (4, 0)])
def test_training_does_not_depend_on_the_number_of_processes(
    trained: Trained, one_process_run: Path, processes: int, workers: int
) -> None:
    run = trained(processes, f"data.num_workers={workers}")
    assert_same_learning(run, one_process_run)
    assert sum(len(line["sample_ids"]) for line in steps(run)) == steps(run)[-1]["samples"]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_does_not_depend_on_the_number_of_workers(
    trained: Trained, one_process_run: Path, workers: int
) -> None:
    assert metrics(trained(1, f"data.num_workers={workers}")) == metrics(one_process_run)


SEMI_SUPERVISED = (
    "semi_supervised={unlabeled: {source: {name: some_digits, n: 80}}, strong: [{name: random_erase, mean: [0.3]}], "
    "pseudo_labels: {name: classes, threshold: 0.3, flexible: true}, batch_share: 0.6, warmup: 2it, decay: 0.8}"
)
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
    "semi-supervised": [SEMI_SUPERVISED],
    "semi-supervised with gradient accumulation": [SEMI_SUPERVISED, "train.micro_batch_size=5"],
    "semi-supervised and sharded": [SEMI_SUPERVISED, "train.parallel={name: fsdp, min_num_params: 100}"],
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


QUICK = ("gradient accumulation", "semi-supervised")


@pytest.mark.parametrize(
    "variant", [pytest.param(variant, marks=() if variant in QUICK else pytest.mark.slow) for variant in VARIANTS]
)
def test_every_variant_trains_the_same_on_three_processes(
    trained: Trained, one_process_run: Path, variant: str
) -> None:
    overrides = [override.replace("ALONE", str(one_process_run)) for override in VARIANTS[variant]]
    if "norm" in variant:
        # A single sample has no variance.
        overrides = [*overrides, "data.drop_last=true"]
    overrides = [*overrides, "train.length=10it"]
    three_processes = trained(3, *overrides)
    if "param_dtype" in str(overrides):  # which one process ignores
        overrides = [*overrides, "train.precision=bf16"]
    one_process = trained(1, *overrides)
    assert_same_learning(three_processes, one_process, 0.02 if "half" in variant else 1e-4)
    # A bias before a batch norm has no gradient but noise, which Adam scales up: it moves the running statistics.
    tolerance = 0.04 if "norm" in variant else 0.02
    for actual, expected in zip(scores(three_processes), scores(one_process), strict=True):
        assert actual == pytest.approx(expected, abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients(trained: Trained, one_process_run: Path, compression: str) -> None:
    run = trained(2, f"train.parallel={{name: ddp, compression: {compression}}}")
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
def test_unsupported_combinations_are_reported(many_run: Run, message: str) -> None:
    log = expect(start(many_run.server, 2, *many_run.words, *REFUSED[message]), 2)
    assert len(re.findall(message, log)) == 1 and "Traceback" not in log


def test_intervals_in_hours_agree_between_processes(trained: Trained) -> None:
    folder = trained(2, "checkpoint.every=0.00001h", "evaluate.every=0ep", "train.length=3it")
    assert len(list((folder / "checkpoints").glob("step-*"))) > 1


# --- evaluation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [91, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_are_bitwise_identical(many_run: Run, one_process_run: Path, samples: int) -> None:
    """With a number of samples that is not divisible, and with fewer samples than processes."""
    name = "val" if samples == 91 else "few"  # scores of other data than the run's have a name of their own
    arguments = [str(one_process_run), f"data.val.source.n={samples}", "evaluate.batch_size=1", "--name", name]
    results = []
    for processes in (1, 3):
        expect(start(many_run.server, processes, *(arguments[:-2] if name == "val" else arguments), command="eval"))
        results.append((one_process_run / "eval" / name / "scores.json").read_text())
    assert results[0] == results[1]


EVALUATORS = (
    "evaluate.evaluators.neighbours.evaluator={name: knn, k: 7}",
    "evaluate.evaluators.probe.evaluator={name: linear_probe, layers: [embedding, backbone.layers.0], epochs: 20}",
    "evaluate.evaluators.shots.evaluator={name: low_shot, shots: [1, 2], repeats: 3}",
    "evaluate.evaluators.machines.evaluator={name: linear_svm, costs: [0.1, 1.0]}",
    "evaluate.evaluators.groups.evaluator=clustering",
    "evaluate.evaluators.alarm.evaluator=collapse",
)


@pytest.mark.slow
def test_metrics_of_embeddings_are_bitwise_identical(many_run: Run, one_process_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(one_process_run, tmp_path / "run")
    results = []
    for processes in (1, 2, 3):
        # The last round has fewer batches than processes: one of three has none.
        expect(start(many_run.server, processes, str(run), *EVALUATORS, "evaluate.batch_size=30", command="eval"))
        # The best checkpoint is not of the last step, whose tables stay: those of the evaluation have their own folder.
        (details_file,) = run.glob("eval/val/step-*/details.json")
        results.append([json.loads(path.read_text()) for path in (run / "eval" / "val" / "scores.json", details_file)])
    names, details = results[0]
    assert {"val/knn_top1", "val/linear_top1", "val/low_shot_2", "val/svm_top1", "val/nmi", "val/rank"} <= names.keys()
    assert {"linear_probe", "low_shot", "linear_svm", "clusters"} <= details.keys()
    assert results[1] == results[0] == results[2]


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_fewer_evaluation_batches_than_processes(trained: Trained, parallel: str) -> None:
    overrides = ("train.length=1it", "data.val.source.n=21", f"train.parallel={parallel}")
    three_processes, one_process = trained(3, *overrides), trained(1, *overrides)
    for actual, expected in zip(scores(three_processes), scores(one_process), strict=True):
        assert actual["val/top1"] == expected["val/top1"]


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), FSDP])
@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_of_two_processes_resumes_on_another_number(
    many_run: Run, trained: Trained, parallel: str, processes: int
) -> None:
    before = trained(2, f"train.parallel={parallel}", "ema={decay: 0.9}", "train.length=12it")
    after = copy_cut_back(before, many_run.folder, 10)
    expect(start(many_run.server, processes, str(after), "--resume"))
    assert [line.get("sample_ids") for line in metrics(after)] == [line.get("sample_ids") for line in metrics(before)]
    for line, expected in zip(metrics(after), metrics(before), strict=True):
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
    many_run: Run, trained: Trained, parallel: str, average: str
) -> None:
    """With batch norm, whose running statistics differ between processes, and a stop at a step without a checkpoint."""
    norms = ("task.backbone.norm=batch", "data.drop_last=true")
    overrides = (f"train.parallel={parallel}", *norms, average, "train.length=6it", "evaluate.every=0ep")
    uninterrupted = trained(2, *overrides)
    programs = start(many_run.server, 2, *many_run.words, *overrides, environments=[{PAUSE: "after_backward 3"}])
    for program in programs:
        program.until_paused()
    programs[1].signal(signal.SIGTERM)
    for program in programs:
        program.unpause()
    expect(programs, 143)
    assert many_run.last_step == 4
    expect(start(many_run.server, 2, str(many_run.folder), "--resume"))
    assert metrics(many_run.folder) == metrics(uninterrupted)
    for file in sorted(checkpoint(uninterrupted, 6).rglob("*.safetensors")):
        assert file.read_bytes() == (many_run.folder / file.relative_to(uninterrupted)).read_bytes(), file.name


def test_torch_reads_a_sharded_checkpoint(trained: Trained) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    path = checkpoint(trained(2, f"train.parallel={FSDP}", "ema={decay: 0.9}", "train.length=12it"), 10)
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


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.slow), FSDP])
def test_a_non_finite_layer_of_one_process_is_named(many_run: Run, parallel: str) -> None:
    overrides = ("data.train={source: {name: huge, n: 65, sample: 40}}", f"train.parallel={parallel}")
    log = expect(start(many_run.server, 2, *many_run.words, "task.backbone={name: explosive}", *overrides), 1)
    assert len(re.findall(r"first not finite after layer backbone\.layers\.5 \(Explosive, ", log)) == 1


def test_rollback_stops_if_no_batch_is_finite(many_run: Run) -> None:
    data = "data={train: {source: {name: poisoned, n: 1, sample: 0}}, batch_size: 1}"
    options = ("train.on_nonfinite=rollback", "train.length=40it", "checkpoint.every=5it", "data.val=null")
    program = many_run.train(data, *options, status=1)
    assert "had non-finite values" in program.err and "this run does not converge" in program.err


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_stop_names_the_step_the_loss_and_the_samples(many_run: Run, processes: int, poisoned_steps: list[int]) -> None:
    log = expect(start(many_run.server, processes, *many_run.words, *POISON), 1)
    assert log.count(f"train/loss is nan at step {poisoned_steps[0]}") == 1
    assert "the batch itself is not finite: image" in log and "the weights were not changed" in log
    assert POISONED_ID in log
    assert "Traceback" not in log


def of_each(quick: list[tuple[object, ...]], slow: list[tuple[object, ...]]) -> list[object]:
    return [*quick, *(pytest.param(*values, marks=pytest.mark.slow) for values in slow)]


@pytest.mark.parametrize(
    ("processes", "parallel", "step"),
    of_each(
        [(2, "fsdp", "standard")],
        [
            (1, "ddp", "standard"),
            (1, "ddp", "blind"),
            (2, "ddp", "standard"),
            (2, "ddp", "blind"),
            (2, "fsdp", "blind"),
        ],
    ),
)
def test_skip_skips_the_update(
    trained: Trained, processes: int, parallel: str, step: str, poisoned_steps: list[int]
) -> None:
    options = ("train.on_nonfinite=skip", f"train.parallel={parallel}", f"train.step={step}")
    folder = trained(processes, *POISON, *options)
    skipped = [line["step"] for line in metrics(folder) if line.get("train/skipped")]
    assert skipped == poisoned_steps
    assert all(math.isfinite(line["train/loss"]) for line in steps(folder) if line["step"] not in skipped)
    tensors = read_checkpoint(checkpoint(folder, 10)).tensors["model"]
    assert all(bool(tensors[name].isfinite().all()) for name in tensors)
    log = (folder / "train.log").read_text()
    assert f"nan at step {skipped[0]}" in log or step == "blind"
    assert f"1 of the updates before step {skipped[0] + 1} were skipped" in log


@pytest.mark.parametrize(("processes", "step"), of_each([(1, "standard")], [(2, "standard"), (2, "blind")]))
def test_rollback_restores_a_checkpoint_and_skips_the_batch(
    trained: Trained, processes: int, step: str, poisoned_steps: list[int]
) -> None:
    folder = trained(processes, *POISON, "train.on_nonfinite=rollback", f"train.step={step}")
    lines = [line for line in metrics(folder) if "lr" in line]
    assert [line["step"] for line in lines] == list(range(1, 11))  # no gap, nothing twice
    assert [line["step"] for line in lines if "train/loss" not in line] == poisoned_steps
    newest = read_checkpoint(checkpoint(folder, 10))
    assert newest.state["left_out"] == [step - 1 for step in poisoned_steps]
    assert all(bool(tensor.isfinite().all()) for tensor in weights(folder, 10).values())
    assert f"the batch of step {poisoned_steps[0]} will be skipped" in (folder / "train.log").read_text()
