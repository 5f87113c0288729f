"""Optional abilities: protocols that an object may satisfy beside its main contract."""

from __future__ import annotations

from typing import Any, Protocol


class OptionalMeta(type(Protocol)):  # type: ignore[misc]
    """Metaclass of runtime-checkable protocols for optional abilities.

    ``isinstance(obj, ThatProtocol)`` is True if ``obj`` has every member that the protocol itself declares and none of
    them is None; members of base protocols are not looked up. It uses ``getattr``, so it also sees attributes that a
    wrapper forwards and submodules of an ``nn.Module``.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace, **kwargs)
        declared = {**namespace.get("__annotations__", {}), **namespace}
        cls._members = tuple(member for member in declared if not member.startswith("_"))

    def __instancecheck__(cls, instance: Any) -> bool:
        if not vars(cls).get("_is_protocol"):  # an ordinary class that inherits from the protocol
            return type.__instancecheck__(cls, instance)
        return all(getattr(instance, member, None) is not None for member in cls._members)
