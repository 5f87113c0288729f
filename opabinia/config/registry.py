"""Families of parts, and the register: a part is any callable whose closed, typed signature is its schema."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from opabinia.config.docstrings import documentation
from opabinia.config.errors import nearest, show
from opabinia.config.types import Parameter, Spec, Unsupported, describe, holds_part, parts_in, plain, spec_of
from opabinia.config.validate import converted, field_of, model_of, place_parts

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T", bound=Callable[..., Any])
_KEPT_BY_COMPOSITION = ("base", "vars")


@dataclass(frozen=True, eq=False)
class Entry:
    """A registered part. Only ``target``, the callable, is lost when a catalog is cached."""

    family: str
    name: str
    target: Callable[..., Any] | None = field(repr=False)
    parameters: tuple[Parameter, ...]
    runtime: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""
    aliases: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def model(self) -> type[BaseModel]:
        """The pydantic model of the signature."""
        return model_of(f"{self.family}.{self.name}", self.parameters)

    def judged(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the callable takes them, in the signature's order.

        Raises:
            pydantic.ValidationError: a value does not fit, or a key is unknown or missing.
        """
        model = self.model.model_validate(given)
        names = [parameter.name for parameter in self.parameters]
        return {name: getattr(model, field_of(i)) for i, name in enumerate(names) if name in given}

    def to_json(self) -> dict[str, Any]:
        """All but the target, as plain data."""
        return asdict(
            Entry(
                self.family, self.name, None, self.parameters, self.runtime, dict(self.renamed), self.doc, self.aliases
            )
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """The inverse of :meth:`to_json`."""
        parameters = tuple(Parameter(**parameter) for parameter in data["parameters"])
        return cls(
            **{**data, "parameters": parameters, "runtime": tuple(data["runtime"]), "aliases": tuple(data["aliases"])}
        )


class Family:
    """One family of a register, used as decorator: ``@register.loss`` or ``@register.loss(name=..., renamed=...)``."""

    def __init__(self, register: Register, name: str) -> None:
        self._register = register
        self.name = name

    @overload
    def __call__(self, target: T, /) -> T: ...

    @overload
    def __call__(
        self, /, *, name: str | None = None, renamed: Mapping[str, str] | None = None, aliases: Sequence[str] = ()
    ) -> Callable[[T], T]: ...

    def __call__(
        self,
        target: T | None = None,
        /,
        *,
        name: str | None = None,
        renamed: Mapping[str, str] | None = None,
        aliases: Sequence[str] = (),
    ) -> T | Callable[[T], T]:
        """Register a callable under ``name`` (its own by default; a class's in snake_case).

        Args:
            target: the callable, when used without parentheses.
            name: the name in configs.
            renamed: old parameter names and the present ones; configs with the old ones keep working, with a warning.
            aliases: old names of the part itself, likewise.

        Raises:
            TypeError: the signature is open, untyped or undocumented, or the name is taken.
        """

        def add(target: T) -> T:
            self._register.add(self.name, target, name, renamed or {}, aliases)
            return target

        return add if target is None else add(target)

    def leave_out(self, name: str, reason: str) -> None:
        """Tell whoever asks for ``name`` in a config why there is no such part, and what to do instead."""
        self._register.left_out[self.name][name] = reason


class Register:
    """All families. ``section`` is a nested group of keys without a name, ``command`` the top level of a config."""

    task: Family
    step: Family
    parallel: Family
    backbone: Family
    neck: Family
    pooling: Family
    head: Family
    detector: Family
    loss: Family
    metric_loss: Family
    optimizer: Family
    schedule: Family
    shapes: Family
    source: Family
    transform: Family
    mix: Family
    sampler: Family
    evaluator: Family
    hook: Family
    writer: Family
    section: Family
    command: Family

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Entry]] = {name: {} for name in FAMILIES}
        for name in FAMILIES:
            setattr(self, name, Family(self, name))
        self.left_out: dict[str, dict[str, str]] = {name: {} for name in FAMILIES}

    def add(
        self,
        family: str,
        target: Callable[..., Any],
        name: str | None,
        renamed: Mapping[str, str],
        aliases: Sequence[str] = (),
    ) -> Entry:
        """Read a signature and enter the part; see :meth:`Family.__call__`."""
        name = name or _default_name(target)
        complain = _Complaint(f"register.{family}: {_origin(target)}")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise complain(f"{name!r} is no name a config could use; give name=...")
        taken = self.entries[family].get(name)
        if taken and taken.target is not None and _origin(taken.target) != _origin(target):
            raise complain(f"the name {name!r} is taken by {_origin(taken.target)}; give another name=...")
        entry = dataclasses.replace(self._read(family, target, name, renamed, complain), aliases=tuple(aliases))
        self.entries[family][name] = entry
        return entry

    def _read(
        self, family: str, target: Callable[..., Any], name: str, renamed: Mapping[str, str], complain: _Complaint
    ) -> Entry:
        doc, described = documentation(target)
        if not doc:
            raise complain("has no docstring; its first line is shown by `opabinia config list`")
        runtime: list[str] = []
        parameters: list[Parameter] = []
        for parameter in _signature(target).parameters.values():
            self._refuse_open(parameter, complain)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                runtime.append(parameter.name)
            else:
                parameters.append(self._parameter(family, target, parameter, described, complain))
        names = [parameter.name for parameter in parameters]
        for old, new in renamed.items():
            if new not in names:
                raise complain(f"renamed={{{old!r}: {new!r}}}: there is no parameter {new!r}")
            if old in names:
                raise complain(f"renamed={{{old!r}: {new!r}}}: {old!r} is still a parameter")
        return Entry(family, name, target, tuple(parameters), tuple(runtime), dict(renamed), doc)

    @staticmethod
    def _refuse_open(parameter: inspect.Parameter, complain: _Complaint) -> None:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise complain(
                f"{stars}{parameter.name} leaves the signature open; name every parameter, or take one "
                f"`options: dict[str, Any]`"
            )
        if parameter.annotation is parameter.empty:
            raise complain(f"parameter {parameter.name!r} has no type; annotate it")

    def _parameter(
        self,
        family: str,
        target: Callable[..., Any],
        parameter: inspect.Parameter,
        described: Mapping[str, str],
        complain: _Complaint,
    ) -> Parameter:
        name = parameter.name
        if name == "name" and family not in ("section", "command"):
            raise complain("a parameter cannot be called 'name': that key names the part; call it otherwise")
        if family == "command" and name in _KEPT_BY_COMPOSITION:
            raise complain(f"a parameter cannot be called {name!r}: that key is read while files are put together")
        spec = self._spec(target, parameter, complain)
        doc = described.get(name, "")
        if parameter.default is parameter.empty:
            return Parameter(name, spec, True, None, doc)
        default = self._default(spec, name, parameter.default, complain)
        return Parameter(name, spec, False, default, doc)

    def _spec(self, target: Callable[..., Any], parameter: inspect.Parameter, complain: _Complaint) -> Spec:
        try:
            spec = spec_of(_resolve(target, parameter.name, parameter.annotation), self._section_of)
        except NameError as error:
            raise complain(
                f"the type of parameter {parameter.name!r} cannot be read ({error}); import what it names at run time, "
                f"not only under TYPE_CHECKING"
            ) from None
        except Unsupported as error:
            raise complain(
                f"parameter {parameter.name!r}: {error}. Make it positional-only (before a `/`) if it arrives at run "
                f'time, or annotate it with a part: Annotated[..., Part("family")]'
            ) from None
        for part in parts_in(spec):
            if part["family"] not in FAMILIES:
                hint = nearest(part["family"], FAMILIES)
                raise complain(
                    f"parameter {parameter.name!r}: there is no family {part['family']!r}; nearest: {hint!r}"
                )
            if (part["family"] == "section") != ("name" in part):
                raise complain(
                    f"parameter {parameter.name!r}: a section, and nothing else, is fixed by name in Part(...)"
                )
        return spec

    def _section_of(self, annotation: Any) -> str | None:
        found = (entry.name for entry in self.entries["section"].values() if entry.target is annotation)
        return next(found, None)

    def _default(self, spec: Spec, name: str, value: Any, complain: _Complaint) -> Any:
        """The default as plain data; a registered callable stands for the part of that name."""
        if callable(value) and holds_part(spec):
            return self._part_default(spec, name, value, complain)
        if isinstance(value, list | tuple) and value and holds_part(spec):
            return [self._default(spec, name, item, complain) for item in value]

        def refuse(*_: Any) -> Any:
            raise complain(f"the default of parameter {name!r} must be a registered callable: the part itself")

        from pydantic import ValidationError

        try:
            default = plain(converted(spec, place_parts(spec, plain(value), (), refuse)))
        except ValidationError:
            raise complain(
                f"the default of parameter {name!r}, {show(plain(value))}, is not {describe(spec)}"
            ) from None
        if _leftover(default):
            raise complain(f"the default of parameter {name!r} holds what cannot be written in YAML")
        return default

    def _part_default(self, spec: Spec, name: str, value: Any, complain: _Complaint) -> dict[str, str]:
        families = [part["family"] for part in parts_in(spec)]
        entry = next((e for f in families for e in self.entries[f].values() if e.target is value), None)
        if entry is None:
            known = " or ".join(families)
            raise complain(f"the default of parameter {name!r}, {_origin(value)}, is no {known} yet; register it first")
        return {} if entry.family == "section" else {"name": entry.name}


class _Complaint:
    """Makes the TypeErrors of one registration."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, message: str) -> TypeError:
        return TypeError(f"{self.what}: {message}")


FAMILIES: tuple[str, ...] = tuple(Register.__annotations__)
register = Register()


def _leftover(value: Any) -> bool:
    """Whether something in a default could not be written in YAML (an object in a dict[str, Any])."""
    if isinstance(value, dict):
        return any(_leftover(item) for item in value.values())
    if isinstance(value, list):
        return any(_leftover(item) for item in value)
    return not isinstance(value, str | int | float | bool | None)


def _default_name(target: Callable[..., Any]) -> str:
    name = getattr(target, "__name__", type(target).__name__)
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
        if inspect.isclass(target)
        else name
    )


def _origin(target: Callable[..., Any]) -> str:
    return f"{target.__module__}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(target)
    except ValueError:
        raise TypeError(f"{_origin(target)} has no signature that Python could read; wrap it in a function") from None


def _resolve(target: Callable[..., Any], name: str, annotation: Any) -> Any:
    """An annotation with its strings evaluated where they were written."""
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns=_namespace(target, name), include_extras=True)["it"]


def _namespace(target: Callable[..., Any], name: str) -> dict[str, Any]:
    """The globals of the module in which the parameter ``name`` was annotated."""
    if dataclasses.is_dataclass(target):  # perhaps by a base class in another module
        owner = next(cls for cls in inspect.getmro(cast(type, target)) if name in vars(cls).get("__annotations__", {}))
        return vars(sys.modules[owner.__module__])
    function: Any = inspect.unwrap(target)
    if inspect.isclass(function):
        function = function.__init__ if function.__init__ is not object.__init__ else function.__new__
    return getattr(function, "__globals__", {})
