"""Errors that users can fix: exit status 2, a message that names place and value, no traceback, nothing on stdout."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CommandResult

MULTIGRID = "'shapes={name: multigrid, size: 32, milestones: [9, 15, 20]}' train.length=24ep data.batch_size=16"
SCHEDULE = f"config show DIGITS --schedule {MULTIGRID}"
GRID = "'shapes={name: progressive, start: 16, end: 32}'"
CPU = "train.device=cpu train.num_threads=1 data.num_workers=0"

CASES = [
    # names and values in general
    ("train classification/digit", "did you mean 'classification/digits'?"),
    ("train nowhere.yaml", "nowhere.yaml: there is no such file"),
    ("train DIGITS seed", "an override is written key=value"),
    ("train DIGITS --resume checkpoints/step-1", "there is no run"),
    ("train DIGITS task.backbone.model=resnet81", "timm"),
    ("train DIGITS optimizer=sgd optimizer.nesterov=true", "Nesterov momentum requires"),
    ("train DIGITS data.val.transforms.0.size=-1", "Resize: RuntimeError: "),
    ("train DIGITS checkpoint.best=val/top2", "val/top2"),
    ("train classification/image_folder", "data.train.source"),
    ("train DIGITS train.num_threads=1000000", "train.num_threads: expected an integer >= 1 and <= 1024"),
    ("train DIGITS data.num_workers=100000", "data.num_workers: expected an integer >= 0 and <= 1024"),
    ("train DIGITS 'data.train.transforms=[{name: RandAugment, num_ops: 100000000}]'", "num_ops: expected an"),
    ("train DIGITS task.std=[0]", "task.std: every value must be above 0"),
    (f"train {'x' * 300}", "there is no such recipe"),
    (f"train {'x' * 300} --resume", "the path is too long"),
    (f"eval {'a/' * 3000}", "the path is too long"),
    ("eval nowhere", "there is no folder nowhere"),
    ("train", "Missing argument 'RECIPE'"),
    ("trian DIGITS", "No such command 'trian'"),
    ("train no/such --json --quiet", "error: no/such"),
    (f"train reid/digits {CPU} data.batch_size=16 data.mix=[mixup]", "an image has one identity"),
    # keys and options as users of other frameworks type them
    ("config check DIGITS train.epochs=5", "train.epochs: unknown key (found 5); write train.length=5ep"),
    ("config check DIGITS optimizer.learning_rate=0.1", "write optimizer.lr=0.1"),
    ("config check DIGITS num_workers=2", "write data.num_workers=2"),
    ("config check DIGITS batch_size=8", "write data.batch_size=8"),
    ("config check DIGITS data.lr=0.1", "write optimizer.lr=0.1"),
    ("config check DIGITS train.shuffle=false", "'shuffle' belongs to data"),
    ("config check DIGITS --lr 0.1", "error: command line: --lr: no such option; write optimizer.lr=0.1"),
    ("config check DIGITS --epochs=5", "write train.length=5ep"),
    ("config check DIGITS --optimizer.lr 0.1", "write optimizer.lr=0.1"),
    ("config check DIGITS --amp", "write train.precision=bf16"),
    ("config check DIGITS --lr", "write optimizer.lr=VALUE"),
    ("train DIGITS --nmae", "No such option"),
    ("predict runs/a --lr 1", "No such option"),
    # evaluation and inference
    ("eval RUN --checkpoint step-1", "step-1"),
    ("eval RUN data.val=null", "data.val: there is no data to evaluate on"),
    ("eval RUN task.backbone.model=test_vit", "the weights do not fit"),
    ("eval RUN --evaluator linear_prob", "(found 'linear_prob'); did you mean 'linear_probe'?"),
    ("eval export/model.onnx", "export/model.onnx is an exported model, for `opabinia serve`"),
    *((f"{command} DIGITS", "is a recipe: give the folder of one") for command in ("eval", "extract", "export")),
    *((f"{name} DIGITS --weights nix.pth", "there is no file or folder") for name in ("eval", "extract", "export")),
    ("predict RUN . --nearest 0", "--nearest"),
    ("search RUN . . --nearest 0", "--nearest"),
    ("predict RUN . --rerank", "--rerank: it re-ranks the images of --gallery"),
    ("predict RUN . --tile 8", "task.tiles: unknown key"),
    ("predict RUN . --tile 8 --gallery .", "--tile: tiles are for object detection, not for --gallery"),
    ("predict RUN . --tile 8 --task a,b", "--tile: tiles are for the detector: give it alone as --task, not a,b"),
    ("predict RUN . --overlap 0.1 --gallery .", "--overlap: tiles are for object detection"),
    ("predict RUN . --set task.no_such_key=1", "task.no_such_key: unknown key"),
    # schedules
    (f"{SCHEDULE} --nproc 5", "its batch of 64 does not divide by 5 ranks"),
    (f"{SCHEDULE} train.length=3ep 'shapes.milestones=[1, 2]'", "it has no epochs; train longer"),
    (f"{SCHEDULE} shapes.short_cycle=[2]", "shapes.short_cycle.0"),
    (f"{SCHEDULE} shapes.milestones=[30]", "[30] must ascend between epoch 0 and 24"),
    ("config show DIGITS --schedule train.length=0ep", "train.length: 0ep is a run without a single step"),
    ("config show DIGITS --out a.png", "--out: belongs to --schedule"),
    ("config show DIGITS --nproc 2", "--nproc: belongs to --schedule"),
    ("config show DIGITS --schedule --out a.jpg", "a.jpg: the image must be a FILE.png"),
    ("config show DIGITS data.batch_size=auto --schedule", "auto is tuned by `opabinia train`"),
    (f"train DIGITS {CPU} data.batch_size=auto {GRID}", "auto is one number, but with shapes batches of several sizes"),
    (f"train DIGITS {CPU} data.batch_size=auto train.reference_world_size=4", "remove train.reference_world_size"),
    # several runs
    ("train DIGITS --seeds 0,x", "command line: --seeds: 'x' is not a seed"),
    ("train DIGITS --seeds ''", "command line: --seeds: '' is not a seed"),
    ("train DIGITS --seeds 0,1,0", "command line: --seeds: 0 occurs twice"),
    ("train DIGITS --seeds 0 seed=1", "command line: seed=1: --seeds sets the seed of every run"),
    ("train DIGITS --seeds 0 --resume", "command line: --resume: remove it: with --seeds the same command resumes"),
    ("train DIGITS --seeds 0 optimiser=sgd", "did you mean 'optimizer'?"),
    ("sweep DIGITS", "nothing varies"),
    (
        "sweep DIGITS 'optimizer.lr=lin(0..1)'",
        "optimizer.lr: a range cannot be used in a grid: use --random",
    ),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --random 3", "there are only 2 different trials, not 3"),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --random 2 --optuna 2", "--optuna: cannot be combined with --random"),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --seed 2", "--seed: is for --random and --optuna"),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --name a/b", "--name: 'a/b' is not valid for a run"),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --random 0", "--random"),
    ("sweep DIGITS optimizer.lr=0.1,0.2 --better most", "--better"),
    # benchmarks
    *(
        (f"benchmark DIGITS --memory '--device-memory={size}'", f"--device-memory: '{size}' is no memory")
        for size in ("4Gx", "24", "-1GiB", "0", "", "999999EiB")
    ),
    ("benchmark detection/coco_format vars.root=absent --memory", "instances_train.json; the nearest existing folder"),
    ("benchmark selfsup/digits_distillation --memory", "task.teacher: there is no folder runs/selfsup/digits_vicreg/"),
    ("benchmark DIGITS --memory --nproc 2", "--nproc: measures; with --memory nothing is"),
    ("benchmark DIGITS --memory --steps 30", "--steps: measures; with --memory nothing is"),
    ("benchmark DIGITS --precision bf16", "--precision: belongs to --memory"),
    ("benchmark DIGITS --memory --precision b16", "expected one of 'fp32', 'bf16', 'fp16'"),
    ("benchmark classification/nothing", "classification/nothing: there is no such recipe"),
    ("benchmark DIGITS data.batch_size=some", "data.batch_size: expected an integer >= 1 or 'auto'"),
    ("benchmark DIGITS --out no/such/a.json", "--out: no/such/a.json is not a file in an existing folder"),
    ("benchmark DIGITS --nproc none", "--nproc: 'none' is neither a number of ranks nor auto"),
    (f"benchmark DIGITS {CPU} {GRID} train.length=3it", "train.length: the run has fewer than the 36 steps that are"),
]


@pytest.mark.parametrize(("line", "message"), CASES, ids=[line[:60] for line, _ in CASES])
def test_errors(
    opabinia: Callable[..., CommandResult],
    six_steps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"DIGITS": "classification/digits", "RUN": str(six_steps)}
    result = opabinia(*(names.get(word, word) for word in shlex.split(line)))
    assert (result.status, result.out) == (2, "")
    assert message in result.err and "Traceback" not in result.err
    if line.startswith(("sweep", "train DIGITS --seeds", "config")):  # refused before anything is written
        assert not list(tmp_path.iterdir())
    if line.startswith("config"):
        assert result.err.count("\n") == 1


def test_a_schedule_that_cannot_be_written(opabinia: Callable[..., CommandResult]) -> None:
    result = opabinia("config", "show", "classification/digits", "--schedule", "--out", "/proc/a.png")
    assert "cannot write /proc/a.png" in result.err and len(result.err.strip().splitlines()) == 1
