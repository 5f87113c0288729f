"""Peak memory of a training step on a GPU, predicted on any machine, and a lower bound of its time.

The step of the run itself is called, on the CPU, with CUDA's mixed precision (:mod:`opabinia.runtime.cuda_autocast`),
and its operators are observed (:mod:`opabinia.runtime.operator_costs`). Where shapes do not depend on values, tensors
are fake: they have shapes and no memory, so a step of any size takes a second. Where values decide (matching of
queries, non-maximum suppression, sampling of regions), steps of one and two samples are computed (two and three where
norms need two), and larger ones follow from the line through both.

Only tensors are counted. The rest of a GPU's memory (CUDA's context, workspaces of libraries, fragmentation) is a
margin that is assumed, not measured.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from opabinia.contracts import Backbone, Batch, Clock, Task
from opabinia.runtime.cuda_autocast import cuda_autocast_on_cpu
from opabinia.runtime.log import log, silence
from opabinia.runtime.operator_costs import Operator, OperatorCosts
from opabinia.runtime.seeds import preserve_generators
from opabinia.tasks.wrapper_base import TaskWrapper
from opabinia.training.batch_size_search import repeat_samples
from opabinia.training.flops import copy_without_values
from opabinia.training.measurement import CPU, SAMPLES, StepParts
from opabinia.training.model import Models
from opabinia.training.roofline import time_bounds
from opabinia.training.run_folder import AUTO, build_parts, resolve
from opabinia.training.session import TrainingRun

GIB = 2**30
CATEGORIES = ("parameters", "ema", "optimizer", "gradients", "inputs", "activations", "temporaries", "others")
"""Kinds of tensors."""
MAX_SAMPLES = 2**16
"""Largest batch of the search."""
DEVICE_MEMORY = tuple(size * GIB for size in (8, 16, 24, 48, 80))
"""Memory of common GPUs, in bytes."""
CONTEXT = GIB * 3 // 4
"""Bytes that torch's allocator does not manage: CUDA's context and its libraries. Assumed."""
FRAGMENTATION = 0.05
"""Share of the tensors' bytes that lies between them or is a kernel's workspace. Assumed."""
Footprint = Callable[[int], Counter[str]]
"""Peak bytes of a step by category, from its number of samples."""
MAX_IMAGES = 64
"""Images of the largest step of a detector that is observed, if the configured batch is smaller: Python takes its time
for each. Beyond it the peak is that of one moment, which grows linearly; losses that compare images grow faster."""


def predict_memory(
    recipe: str, overrides: Sequence[str] = (), *, device_memory: Sequence[int] = DEVICE_MEMORY
) -> dict[str, Any]:
    """Predict the memory of a training step of a recipe on one GPU. Nothing is trained.

    Args:
        recipe: a packaged recipe, a YAML file or a run folder.
        overrides: ``key=value``.
        device_memory: sizes in bytes for which the largest batch is searched.

    Returns:
        JSON values, in bytes, samples and seconds:

        - ``peak``: bytes at the peak of a step by category (``parameters`` with buffers, ``gradients``, ``optimizer``,
          ``ema``, ``inputs`` with the prefetched batch, ``activations``, ``temporaries`` of backward pass and update,
          ``others``, ``margin``), and their ``total``;
        - ``batch_size``, ``input``: samples of that step, and the shape of one after the transforms;
        - ``largest_batch``: for each ``device_memory`` the samples of the largest step that fits, as configured
          (``plain``) and with ``activation_checkpointing`` (None: the backbone has none); 0: one sample does not fit.
          Empty for a multi-task run, whose batch has several streams;
        - ``method``: ``shapes``, or ``values`` where those decide;
        - ``time_bounds``: of a step of ``bounded_batch`` samples, see
          :func:`opabinia.training.roofline.time_bounds`;
        - ``notes``: sentences about parts of the config that the prediction does not follow;
        - ``calibrated``: whether the margin was measured on a GPU; ``seconds``: what the prediction took.

    Raises:
        ConfigError: the recipe is invalid, its data cannot be read, or the model does not take it.
    """
    started = time.perf_counter()
    resolved = resolve(recipe, [*overrides, "train.device=cpu", "data.num_workers=0"])
    with silence(), preserve_generators(), cuda_autocast_on_cpu():
        parts = StepParts.of(TrainingRun(**build_parts(resolved, batch_size=SAMPLES, augment_on="workers").keywords))
        global_batch, batch = parts.largest
        method, observed, footprint = _observe(parts)
        peak = footprint(global_batch.count)
        bounded_batch, bounds = observed.samples, time_bounds(observed.operators)
        sizes = () if "streams" in batch else device_memory
        plain = [largest_batch(footprint, size, observed.smallest) for size in sizes]
        less = observed.checkpoint_activations() and [
            largest_batch(footprint, size, observed.smallest) for size in sizes
        ]
    return {
        "recipe": recipe,
        "precision": parts.run.train.precision,
        "batch_size": global_batch.count,
        "micro_batch_size": parts.run.train.micro_batch_size,
        "input": input_shape(batch),
        "method": method,
        "peak": {
            **{name: peak[name] for name in CATEGORIES},
            "margin": margin(peak.total()),
            "total": device_bytes(peak),
        },
        "largest_batch": [
            {"device_memory": size, "plain": plain[index], "activation_checkpointing": less[index] if less else None}
            for index, size in enumerate(sizes)
        ],
        "bounded_batch": bounded_batch,
        "time_bounds": bounds,
        "notes": _notes(resolved.config, parts),
        "calibrated": False,
        "seconds": time.perf_counter() - started,
    }


def _notes(config: Mapping[str, Any], parts: StepParts) -> list[str]:
    """Return a sentence about each part of the config that the prediction does not follow."""
    train, notes = parts.run.train, []
    if config["data"].get("batch_size") == AUTO:
        notes.append(
            f"data.batch_size is auto: a batch of {parts.largest[0].count} is shown; the largest ones are its limits."
        )
    if parts.batches.is_joint:
        notes.append("A batch of several tasks has the configured size: no largest one is searched.")
    if config["train"]["parallel"]["name"] == "fsdp":
        notes.append("train.parallel is fsdp: the prediction is for one GPU, which holds everything; several share it.")
    if parts.run.init is not None:
        notes.append("init is not read: other weights of the same model take the same memory.")
    if train.compile:
        notes.append("train.compile is not predicted: it needs less for activations.")
    return notes


def margin(tensor_bytes: int) -> int:
    """Return the bytes of a GPU that are not tensors, for ``tensor_bytes`` of tensors."""
    return CONTEXT + int(FRAGMENTATION * tensor_bytes)


def device_bytes(peak: Counter[str]) -> int:
    """Return the bytes of a GPU that a step with this peak needs."""
    return peak.total() + margin(peak.total())


def largest_batch(footprint: Footprint, device_memory: int, smallest: int = 1) -> int:
    """Return the samples of the largest step that fits into ``device_memory`` bytes, at most 1/64 too few; 0: not even
    the smallest step fits.

    A peak is the largest of several moments that each grow at least linearly, so it is a convex function: a line
    through two steps never leads short of the answer, and never lies below the peaks between them.

    Args:
        footprint: peak bytes by category of a step with a number of samples.
        device_memory: number of bytes.
        smallest: samples of the smallest step.

    Example: with 1 GiB and 50 MiB per sample 6 samples fit into 2.2 GiB (CONTEXT and FRAGMENTATION included).
    """
    fitting, too_large = smallest, MAX_SAMPLES
    needs = {samples: device_bytes(footprint(samples)) for samples in (smallest, smallest + 1)}
    if needs[smallest] > device_memory:
        return 0
    while too_large - fitting > max(1, fitting // 64):
        left, right = sorted(needs)[-2:] if too_large not in needs else (fitting, too_large)
        slope = max(1.0, (needs[right] - needs[left]) / (right - left))
        guess = int(left + (device_memory - needs[left]) / slope)
        guess = min(max(guess, fitting + 1), too_large - 1)
        needs[guess] = device_bytes(footprint(guess))
        if needs[guess] <= device_memory:
            fitting = guess
        else:
            too_large = guess
    return fitting


def _observe(parts: StepParts) -> tuple[str, ObservedStep, Footprint]:
    """Observe a step of the configured batch, with fake tensors if that is possible; return the method, the step, and
    the footprints of others."""
    global_batch, batch = parts.largest
    if can_be_fake(parts):
        observed = ObservedStep(parts, FakeTensorMode(allow_non_fake_inputs=True))
        try:
            observed.footprint(global_batch.count)
            if "boxes" not in batch:
                return "shapes", observed, observed.footprint
            second = max(MAX_IMAGES, global_batch.count)
            return "shapes", observed, extend(observed, second // 2, second)
        except Exception as error:  # a model may read a value in any way
            log.debug("values decide the shapes of this step: %s", error)
    observed = ObservedStep(parts, None)
    # The first batch of a multi-task run has several streams and cannot have another size.
    is_joint = parts.batches.is_joint
    footprint = observed.footprint if is_joint else extend(observed, observed.smallest, observed.smallest + 1)
    footprint(global_batch.count)
    return "values", observed, footprint


def can_be_fake(parts: StepParts) -> bool:
    """Return whether to try fake tensors. Networks of the transformers library read values and would keep fake tensors
    in caches of their functions."""
    model = parts.wrapper or parts.model
    return "transformers" not in {type(module).__module__.partition(".")[0] for module in model.modules()}


def input_shape(batch: Batch) -> str:
    """Return the shape of a sample, such as ``3 x 224 x 224``; views and streams are separated by commas."""
    batches = batch.get("streams", {"": batch}).values()
    images = [image for batch in batches for image in ([batch["image"]] if "image" in batch else batch["views"])]
    return ", ".join(dict.fromkeys(" x ".join(map(str, image.shape[1:])) for image in images))


class ObservedStep:
    """A training step whose tensors are counted.

    Args:
        parts: parts of the step.
        mode: makes tensors fake; None: they have values.

    Attributes:
        operators: those of the newest step that was observed.
        samples: its samples.
    """

    def __init__(self, parts: StepParts, mode: FakeTensorMode | None) -> None:
        self._mode = mode
        self._global_batch, self._batch = parts.largest  # read before tensors are fake
        self._costs = costs = OperatorCosts()
        self._peaks: dict[int, Counter[str]] = {}
        self.operators: list[Operator] = []
        self.samples = 0
        with mode or nullcontext():
            self._task = called = self._copy(parts.wrapper or parts.model)
            self._ema = ema = self._copy(parts.model) if parts.run.ema else None
            wrapper = called if isinstance(called, TaskWrapper) else None
            self._step = parts.make(Models(wrapper.task if wrapper else called, ema, wrapper=wrapper))
            _init_state(self._step.optimizer)
        costs.add((*self._task.parameters(), *self._task.buffers()), "parameters")
        costs.add((*ema.parameters(), *ema.buffers()) if ema else (), "ema")
        costs.add(_tensors(list(self._step.optimizer.state.values())), "optimizer")
        self._task.register_forward_pre_hook(lambda *_: setattr(costs, "category", "activations"))
        self._task.register_forward_hook(lambda *_: setattr(costs, "category", "temporaries"))
        for param in self._task.parameters():
            if param.requires_grad:
                hook: Any = param.register_post_accumulate_grad_hook
                hook(lambda param: costs.add(_tensors(param.grad), "gradients"))

    def footprint(self, samples: int) -> Counter[str]:
        """Return the peak bytes by category of a step with a number of samples; the prefetched batch is included."""
        if samples not in self._peaks:
            self._peaks[samples] = self._observe(samples)
        return self._peaks[samples]

    def run(self, batch: Batch, samples: int) -> None:
        """Train on a batch with ``samples`` samples."""
        self._step(batch, replace(self._global_batch, count=samples), Clock(), lambda: None)

    def _observe(self, samples: int) -> Counter[str]:
        costs = self._costs
        with self._mode or nullcontext():
            batch = repeat_samples(self._to_fake(self._batch), samples)
            costs.add(_tensors(batch), "inputs")
            costs.restart()
            with costs:
                self.run(batch, samples)
        self.operators, self.samples = list(costs.operators), samples
        return costs.peak + Counter(inputs=costs.peak["inputs"])

    @cached_property
    def smallest(self) -> int:
        """Samples of the smallest step: two where a norm over a single one has no variance."""
        try:
            self.footprint(1)
        except ValueError:
            return 2
        return 1

    def checkpoint_activations(self) -> bool:
        """Recompute activations from now on; return whether the backbone can."""
        backbones = [module for module in self._task.modules() if isinstance(module, Backbone)]
        try:
            for backbone in backbones:
                backbone.checkpoint_activations()
        except ValueError:
            return False
        self._peaks.clear()
        return bool(backbones)

    def _copy(self, model: Task) -> Task:
        return copy.deepcopy(model) if self._mode is None else copy_without_values(model, CPU)

    def _to_fake(self, value: Any) -> Any:
        return value if self._mode is None else tree_map_only(Tensor, self._mode.from_tensor, value)


def extend(step: ObservedStep, first: int, second: int) -> Footprint:
    """Return the footprints of steps of any size: observed up to ``second`` samples, beyond them on the line through
    the steps of ``first`` and ``second`` samples."""

    def footprint(samples: int) -> Counter[str]:
        if samples <= second:
            return step.footprint(samples)
        low, high = step.footprint(first), step.footprint(second)
        steps = (samples - first) / (second - first)
        return Counter({name: round(low[name] + steps * (high[name] - low[name])) for name in {**low, **high}})

    return footprint


def _init_state(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer allocate its state by an update with gradients of zeros."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    for param in params:
        param.grad = None


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
