"""Families of parts, and the register: a part is any callable whose closed, typed signature is its schema."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast, overload

from opabinia.config.arguments import remember_arguments
from opabinia.config.docstrings import documentation
from opabinia.config.errors import nearest, show
from opabinia.config.types import Parameter, Spec, Unsupported, describe, holds_part, parts_in, spec_of
from opabinia.config.validate import fit, plain

T = TypeVar("T", bound=Callable[..., Any])
Complain = Callable[[str], TypeError]
_RESERVED_KEYS = ("base", "vars")


@dataclass(frozen=True, eq=False)
class Entry:
    """A registered part.

    Attributes:
        family, name: its place in the register.
        target: the callable; None if the entry was read from a cache (see :meth:`load`).
        parameters: those that configs give, in the signature's order.
        runtime: names of the positional-only parameters, which are given at run time.
        renamed: old names of parameters, and the current ones.
        doc: first line of the docstring.
        aliases: old names of the part.
        module: the module whose import registers it.
    """

    family: str
    name: str
    target: Callable[..., Any] | None = field(repr=False)
    parameters: tuple[Parameter, ...]
    runtime: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""
    aliases: tuple[str, ...] = ()
    module: str = ""

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def load(self) -> Callable[..., Any] | None:
        """Return the callable, importing the module that registers it; None if that does not register it."""
        if self.target is not None:
            return self.target
        importlib.import_module(self.module)
        entry = register.entries[self.family].get(self.name)
        return entry.target if entry else None

    def to_json(self) -> dict[str, Any]:
        """Return everything but the target as plain data."""
        return asdict(dataclasses.replace(self, target=None, renamed=dict(self.renamed)))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """Return the entry that :meth:`to_json` was called on, without its target."""
        parameters = tuple(Parameter(**parameter) for parameter in data["parameters"])
        tuples = {name: tuple(data[name]) for name in ("runtime", "aliases")}
        return cls(**{**data, **tuples, "parameters": parameters})


def find_entry(entries: Mapping[str, Entry], name: str) -> Entry | None:
    """Return the part of this name or alias."""
    return entries.get(name) or next((entry for entry in entries.values() if name in entry.aliases), None)


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
            renamed: old parameter names and the current ones; configs with the old ones keep working, with a warning.
            aliases: old names of the part itself, likewise.

        Raises:
            TypeError: the signature is open, untyped or undocumented, or a name is taken.
        """

        def add(target: T) -> T:
            return cast(T, self._register.add(self.name, target, name, renamed or {}, aliases).target)

        return add if target is None else add(target)

    def mark_unsupported(self, name: str, reason: str) -> None:
        """Let a config that asks for ``name`` fail with ``reason``: why there is no such part, and the alternative."""
        self._register.unsupported[self.name][name] = reason


class Register:
    """All families. ``section`` is a nested group of keys without a name, ``command`` the top level of a config.

    Attributes:
        entries: the parts by family and name.
        unsupported: by family and name, the reason why there is no such part.
    """

    task: Family
    step: Family
    parallel: Family
    backbone: Family
    neck: Family
    pooling: Family
    head: Family
    detector: Family
    decoder: Family
    loss: Family
    segmentation_loss: Family
    metric_loss: Family
    balance: Family
    pseudo_labels: Family
    optimizer: Family
    schedule: Family
    shapes: Family
    source: Family
    transform: Family
    mix: Family
    sampler: Family
    evaluator: Family
    tracker: Family
    hook: Family
    logger: Family
    section: Family
    command: Family

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Entry]] = {name: {} for name in FAMILIES}
        for name in FAMILIES:
            setattr(self, name, Family(self, name))
        self.unsupported: dict[str, dict[str, str]] = {name: {} for name in FAMILIES}

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
        complain = _complaint(f"register.{family}: {_origin(target)}")
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise complain(f"{name!r} is not a name that a config could use; give name=...")
        for word in (name, *aliases):
            taken = find_entry(self.entries[family], word)
            if taken and taken.target is not None and _origin(taken.target) != _origin(target):
                raise complain(f"the name {word!r} is taken by {_origin(taken.target)}; give another name=...")
        entry = dataclasses.replace(
            self._read(family, target, name, renamed, complain), aliases=tuple(aliases), module=_importing_module()
        )
        if not entry.runtime and family != "command":
            entry = dataclasses.replace(entry, target=remember_arguments(target, family, name))
        self.entries[family][name] = entry
        return entry

    def _read(
        self, family: str, target: Callable[..., Any], name: str, renamed: Mapping[str, str], complain: Complain
    ) -> Entry:
        doc, described = documentation(target)
        if not doc:
            raise complain("has no docstring; its first line is shown by `opabinia config list`")
        runtime: list[str] = []
        parameters: list[Parameter] = []
        for parameter in _signature(target).parameters.values():
            _check_closed(parameter, complain)
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

    def _parameter(
        self,
        family: str,
        target: Callable[..., Any],
        parameter: inspect.Parameter,
        described: Mapping[str, str],
        complain: Complain,
    ) -> Parameter:
        name = parameter.name
        if name == "name" and family not in ("section", "command"):
            raise complain("a parameter cannot be called 'name': that key names the part; rename it")
        if family == "command" and name in _RESERVED_KEYS:
            raise complain(f"a parameter cannot be called {name!r}: that key is read while files are composed")
        spec = self._spec(target, parameter, complain)
        doc = described.get(name, "")
        if parameter.default is parameter.empty:
            return Parameter(name, spec, True, None, doc)
        default = self._default(spec, name, parameter.default, complain)
        return Parameter(name, spec, False, default, doc)

    def _spec(self, target: Callable[..., Any], parameter: inspect.Parameter, complain: Complain) -> Spec:
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
        names = (entry.name for entry in self.entries["section"].values() if entry.target is annotation)
        return next(names, None)

    def _default(self, spec: Spec, name: str, value: Any, complain: Complain) -> Any:
        """Return the default as plain data; a registered callable stands for the part of that name."""
        if callable(value) and holds_part(spec):
            return self._part_default(spec, name, value, complain)
        if isinstance(value, list | tuple) and value and holds_part(spec):
            return [self._default(spec, name, item, complain) for item in value]

        def refuse(*_: Any) -> Any:
            raise complain(f"the default of parameter {name!r} must be a registered callable: the part itself")

        def report(*_: Any) -> None:
            raise complain(f"the default of parameter {name!r}, {show(plain(value))}, is not {describe(spec)}")

        default = plain(fit(spec, plain(value), (), report, refuse))
        if not _is_yaml(default):
            raise complain(f"the default of parameter {name!r} holds a value that cannot be written in YAML")
        return default

    def _part_default(self, spec: Spec, name: str, value: Any, complain: Complain) -> dict[str, str]:
        families = [part["family"] for part in parts_in(spec)]
        entry = next((e for f in families for e in self.entries[f].values() if e.target is value), None)
        if entry is None:
            known = " or ".join(families)
            raise complain(
                f"the default of parameter {name!r}, {_origin(value)}, is not a registered {known}; register it first"
            )
        return {} if entry.family == "section" else {"name": entry.name}


def _complaint(what: str) -> Complain:
    """Return a function that creates the TypeErrors of one registration."""
    return lambda message: TypeError(f"{what}: {message}")


FAMILIES: tuple[str, ...] = tuple(Register.__annotations__)
register = Register()


def _check_closed(parameter: inspect.Parameter, complain: Complain) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise complain(
            f"{stars}{parameter.name} leaves the signature open; name every parameter, or take one "
            f"`options: dict[str, Any]`"
        )
    if parameter.annotation is parameter.empty:
        raise complain(f"parameter {parameter.name!r} has no type; annotate it")


def _importing_module() -> str:
    """The module whose import led here: the innermost one whose top-level code is running."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame else ""


def _is_yaml(value: Any) -> bool:
    """Whether a default can be written in YAML, unlike an object in a dict[str, Any]."""
    if isinstance(value, dict | list):
        return all(map(_is_yaml, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str | int | float | bool | None)


def _default_name(target: Callable[..., Any]) -> str:
    if inspect.isclass(target):
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", target.__name__).lower()
    return str(getattr(target, "__name__", type(target).__name__))


def _origin(target: Callable[..., Any]) -> str:
    return f"{target.__module__}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _signature(target: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(target)
    except ValueError:
        raise TypeError(f"{_origin(target)} has no readable signature; wrap it in a function") from None


def _resolve(target: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Evaluate an annotation that is a string, in the module where it was written."""
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
        construct = function.__init__ if function.__init__ is not object.__init__ else function.__new__
        function = inspect.unwrap(construct)
    return getattr(function, "__globals__", {})
