"""Tensors that claim to be on ``cuda:0``, computed on the CPU under the rules of CUDA.

Each operation is checked (devices, generators, data types, determinism), its host waits are recorded, and the CPU
computes it with the tensors inside its operands. Differentiation, autocast and ``GradScaler`` are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.device.records import RECORD
from tests.device.rules import HALF, INDEXING, is_nondeterministic, lacks, on_host, takes_scalars_of_the_host, wait_of

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)

Kwargs = dict[str, Any]


class PretendedTensor(Tensor):
    """A tensor on the pretended device; ``host`` holds its values."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> PretendedTensor:
        """Wrap a tensor of the host."""
        wrapper: PretendedTensor = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=DEVICE,
        )
        wrapper.host = host
        return wrapper

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: OpOverload, types: Any, args: Any = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operation outside of :class:`PretendedDevice`, such as in a thread of torch."""
        return run(func, args, kwargs or {})

    # Methods that are not operations.

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        with _disable_current_modes():
            return f"PretendedTensor({self.host!r})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Copy a leaf, a parameter included, with its gradient and attributes."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support deepcopy")
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        copy.grad = None if self.grad is None else self.grad.__deepcopy__(memo)
        copy.__dict__.update({name: value for name, value in self.__dict__.items() if name != "host"})
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return PretendedTensor, (self.detach().cpu(),)

    @property
    def data(self) -> Tensor:
        """The tensor outside of the graph."""
        return Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.host = unwrap(value)

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()

    def is_shared(self) -> bool:
        return False

    def record_stream(self, stream: Any) -> None:
        """Do nothing: streams have no time here."""

    def tolist(self) -> Any:
        RECORD.add_wait("item")
        with _disable_current_modes():
            return self.host.detach().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.numpy()


class PretendedDevice(TorchDispatchMode):
    """Directs every operation of a thread to :func:`run`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid torch's wrapper, which takes as long as a small operation and is for torch.compile."""
        return False

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Kwargs | None = None) -> Any:
        return run(func, args, kwargs or {})


# --- operations -------------------------------------------------------------------------------------------------------


def run(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """Run an operation of either device.

    Raises:
        RuntimeError: CUDA would refuse it.
    """
    if (transfer := TRANSFERS.get(function._schema.name)) is not None:
        return transfer(function, args, kwargs)
    tensors = tensors_in(args, kwargs)
    on_device = [tensor for tensor in tensors if isinstance(tensor, PretendedTensor)]
    target = None if (device := kwargs.get("device")) is None else torch.device(device)
    to_device = target is not None and target.type == DEVICE.type
    if not on_device and not to_device:
        check_copies_have_ended(tensors)
        return run_on_host(function, args, kwargs)
    if target is not None and to_device and target.index not in (None, DEVICE.index):
        refuse(f"{target} does not exist", function, tensors)
    if on_device:
        check_devices(function, args, tensors)
        check_types(function, on_device)
        if kind := wait_of(function, args, kwargs):
            RECORD.add_wait(kind)
    if torch.are_deterministic_algorithms_enabled() and is_nondeterministic(function, args, kwargs):
        RECORD.add_nondeterministic(function._schema.name)
    results = compute(function, args, kwargs)
    if target is not None and not to_device:
        return results  # such as zeros_like(..., device="cpu")
    if any(tensor.dtype == torch.float64 for tensor in tensors_in((results,))):
        RECORD.add_float64(function._schema.name)
    return wrap(results, {id(tensor.host): tensor for tensor in on_device}, function)


def compute(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """Compute an operation on the tensors of the host, in float32 where the CPU lacks a kernel for half precision."""
    check_generator(function, kwargs)
    args = [unwrap(value) for value in args]
    kwargs = {name: unwrap(value) for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    if (of_host := ON_HOST.get(function._schema.name)) is not None:
        return of_host(function, args, kwargs)
    if function._schema.name in IN_FLOAT32 and not function._schema.is_mutable:
        return compute_in_float32(function, args, kwargs)
    try:
        return function(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        lacks_kernel = any(
            part in str(error) for part in ("not implemented for", "does not support", "create a primitive")
        )
        if function._schema.is_mutable or not lacks_kernel:
            raise
        return compute_in_float32(function, args, kwargs)


def compute_in_float32(function: OpOverload, args: Any, kwargs: Kwargs) -> Any:
    """Compute an operation on operands of half precision in float32; round the results."""
    half = next((tensor.dtype for tensor in tensors_in(args, kwargs) if tensor.dtype in HALF), None)
    if half is None:
        return function(*args, **kwargs)

    def to_float32(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in HALF else tensor

    results = function(
        *(each_tensor(value, to_float32) for value in args),
        **{name: each_tensor(value, to_float32) for name, value in kwargs.items()},
    )
    return each_tensor(results, lambda tensor: tensor.to(half) if tensor.dtype == torch.float32 else tensor)


IN_FLOAT32 = {
    *("aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
}
"""Operations whose kernels for half precision are slow on a CPU; convolutions sometimes return NaN in torch 2.15."""


def softmax(function: OpOverload, args: Any, kwargs: Kwargs) -> Tensor:
    """Compute a softmax; that of CUDA may read half precision and return float32."""
    inputs, dim, to_float32 = args
    result: Tensor = function(inputs.float() if to_float32 else inputs, dim, False)
    return result


def softmax_backward(function: OpOverload, args: Any, kwargs: Kwargs) -> Tensor:
    """Compute the gradient of :func:`softmax`, in the type of its input."""
    gradient, output, dim, dtype = args
    result: Tensor = function(gradient, output, dim, gradient.dtype)
    return result.to(dtype)


ON_HOST: dict[str, Callable[[OpOverload, Any, Kwargs], Any]] = {
    "aten::_softmax": softmax,
    "aten::_log_softmax": softmax,
    "aten::_softmax_backward_data": softmax_backward,
    "aten::_log_softmax_backward_data": softmax_backward,
    "aten::_fused_sdp_choice": lambda function, args, kwargs: 0,  # attention by matrix products
}
"""Operations that the CPU computes otherwise than CUDA."""


def run_on_host(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """Run an operation without tensors of the device; allocation of pinned memory is noted, not done."""
    if not kwargs.get("pin_memory"):
        return function(*args, **kwargs)
    return pin(function(*args, **{**kwargs, "pin_memory": False}))


def wrap(results: Any, operands: Mapping[int, Tensor], function: OpOverload) -> Any:
    """Return results as tensors of the device; an operand that was changed in place remains itself."""

    def to_device(result: Tensor) -> Tensor:
        operand = operands.get(id(result))
        if operand is None:
            return PretendedTensor(result)
        if operand.shape != result.shape:
            raise NotImplementedError(f"the pretended CUDA device cannot change a shape in place: {function}")
        return operand

    return each_tensor(results, to_device)


# --- checks -----------------------------------------------------------------------------------------------------------


def refuse(message: str, function: OpOverload, tensors: Sequence[Tensor]) -> NoReturn:
    """Raise the error of CUDA, with the operands."""
    operands = ", ".join(f"{tensor.device} {tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors)
    raise RuntimeError(f"{message}: {function} of {operands}")


def check_devices(function: OpOverload, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Refuse operands on the host, with the exceptions of CUDA: scalars of elementwise operations, and indices."""
    host = on_host(tensors)
    if not host:
        return
    changes_host = function._schema.is_mutable and not isinstance(tensors[0], PretendedTensor)
    if function._schema.name in INDEXING and not changes_host and isinstance(args[0], PretendedTensor):
        host = on_host([args[2]]) if len(args) > 2 else []
    if changes_host or any(tensor.dim() > 0 for tensor in host):
        refuse(
            "Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu", function, tensors
        )
    if host and not takes_scalars_of_the_host(function):
        refuse("Expected all tensors to be on the same device, but found a scalar on cpu", function, tensors)


def check_types(function: OpOverload, on_device: Sequence[Tensor]) -> None:
    """Refuse half precision in operations for which CUDA has no such kernel."""
    for tensor in on_device:
        if tensor.dtype in HALF and lacks(function, tensor.dtype):
            refuse(f"not implemented for {tensor.dtype} on CUDA", function, on_device)


def check_generator(function: OpOverload, kwargs: Kwargs) -> None:
    """Refuse a generator of the host."""
    generator: torch.Generator | None = kwargs.get("generator")
    if generator is not None and generator._cdata not in DEVICE_GENERATORS:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu': {function}")


DEVICE_GENERATORS: set[int] = set()
"""Addresses of the generators of the device. They are never freed, so that no other receives the address of one."""


# --- copies between host and device -----------------------------------------------------------------------------------


def copy_to(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Tensor:
    """``tensor.to(...)``: copy to the device or the host, or convert."""
    (source,) = args
    options = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
    target = torch.device(kwargs.get("device") or source.device)
    from_device, to_device = isinstance(source, PretendedTensor), target.type == DEVICE.type
    if target.type not in ("cpu", DEVICE.type):
        result: Tensor = function(unwrap(source), device=target, **options)
        return result
    if not from_device:
        check_copies_have_ended([source])
    result = function(unwrap(source), **options)
    if to_device and result.dtype == torch.float64:
        RECORD.add_float64("aten::_to_copy")
    if to_device != from_device:
        # From the device torch copies to pinned memory if the host need not wait.
        is_pinned_copy = from_device and kwargs.get("non_blocking", False)
        note_copy(source, pin(result) if is_pinned_copy else result, bool(kwargs.get("non_blocking")))
    return PretendedTensor(result) if to_device else result


def copy_into(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Tensor:
    """``target.copy_(source)``."""
    target, source = args[:2]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    function(unwrap(target), unwrap(source))
    if isinstance(target, PretendedTensor) != isinstance(source, PretendedTensor):
        note_copy(source, target, bool(non_blocking))
    return target  # type: ignore[no-any-return]


def note_copy(source: Tensor, target: Tensor, non_blocking: bool) -> None:
    """Record how the host waits for a copy between the devices."""
    to_device = not isinstance(source, PretendedTensor)
    if not non_blocking:
        RECORD.add_wait("copy to the device" if to_device else "copy to the host")
    elif to_device:
        if source.numel() and not is_pinned(source):
            RECORD.add_pageable_copy()
    elif is_pinned(target):
        RECORD.pending_copies.append(StorageWeakRef(target.untyped_storage()))
    else:
        RECORD.add_wait("copy to the host")  # of memory that is not pinned: the driver waits


def check_copies_have_ended(tensors: Sequence[Tensor]) -> None:
    """Refuse to read memory to which the device may still copy: a race on a GPU."""
    if pending := {storage.cdata for storage in RECORD.pending_copies}:
        for tensor in tensors:
            if tensor.layout == torch.strided and tensor.untyped_storage()._cdata in pending:
                place = "before the copy from the device has ended: wait for an event first"
                raise RuntimeError(f"a tensor of the host {tuple(tensor.shape)} is read {place}")


def read_item(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Any:
    """``tensor.item()``."""
    if isinstance(args[0], PretendedTensor):
        RECORD.add_wait("item")
    else:
        check_copies_have_ended(args[:1])
    return function(unwrap(args[0]))


def pin_memory(function: OpOverload, args: Sequence[Any], kwargs: Kwargs) -> Tensor:
    """``tensor.pin_memory()``."""
    if isinstance(args[0], PretendedTensor):
        refuse("only dense CPU tensors can be pinned", function, args[:1])
    return pin(args[0].clone())


PINNED: dict[int, StorageWeakRef] = {}
"""Pinned memory by the address of its storage, which no other has as long as it is referred to here."""


def pin(tensor: Tensor) -> Tensor:
    """Note that the memory of a tensor is pinned."""
    storage = StorageWeakRef(tensor.untyped_storage())
    PINNED[storage.cdata] = storage
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Return whether the memory of a tensor of the host is pinned."""
    return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in PINNED


TRANSFERS: dict[str, Callable[[OpOverload, Sequence[Any], Kwargs], Any]] = {
    "aten::_to_copy": copy_to,
    "aten::copy_": copy_into,
    "aten::_local_scalar_dense": read_item,
    "aten::pin_memory": pin_memory,
    "aten::_pin_memory": pin_memory,
    "aten::is_pinned": lambda function, args, kwargs: not isinstance(args[0], PretendedTensor) and is_pinned(args[0]),
    "aten::record_stream": lambda function, args, kwargs: None,
}


# --- operands and results ---------------------------------------------------------------------------------------------


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return the tensors among arguments, and in lists and tuples among them."""
    tensors: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [item for item in value if isinstance(item, Tensor)]
    return tensors


def each_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a value with the tensor changed that it is, or those in a list or tuple."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([change(item) if isinstance(item, Tensor) else item for item in value])
    return value


def unwrap(value: Any) -> Any:
    """Return a value with the tensors of the host in place of those of the device."""
    if isinstance(value, PretendedTensor):
        return value.host
    if isinstance(value, list | tuple):
        return [item.host if isinstance(item, PretendedTensor) else item for item in value]
    return value
