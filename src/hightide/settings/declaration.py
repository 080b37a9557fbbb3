"""Declarations of settings: each one once, with type, default, limits, scope and meaning.

A class of settings lists them as annotated attributes; the name of the attribute is Kafka's name
with underscores for dots. Everything else is derived from the declaration: the values that a
properties file may have, the error for other values, the DescribeConfigs response and the reference
page.

These are not dataclasses: one with two hundred fields takes ten milliseconds of every start,
because it compiles its methods from text. Here a declaration is an object, and an instance holds
only the values that differ from the defaults.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, dataclass_transform

# Python has one type for integers and one for text; these names tell Kafka's types apart.
short: TypeAlias = int
long: TypeAlias = int
password: TypeAlias = str
java_class: TypeAlias = str
names: TypeAlias = tuple[str, ...]


class Scope(enum.Enum):
    """Whether a setting can change while the broker runs: for one broker, or for all."""

    FIXED = "read-only"
    BROKER = "per-broker"
    CLUSTER = "cluster-wide"


class Kind(enum.IntEnum):
    """The type of a setting, with its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(enum.IntEnum):
    """The source of a value, with its number in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7


class Effect(enum.Enum):
    """Whether a setting has an effect. Its declaration has the reason if not."""

    FULL = ""
    NONE = "without effect"
    LATER = "not in this version"


_KINDS = {
    "bool": Kind.BOOLEAN,
    "str": Kind.STRING,
    "int": Kind.INT,
    "short": Kind.SHORT,
    "long": Kind.LONG,
    "float": Kind.DOUBLE,
    "names": Kind.LIST,
    "java_class": Kind.CLASS,
    "password": Kind.PASSWORD,
}
_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class InvalidSetting(ValueError):
    """Settings that are not valid. Each problem is a line with the place of the value."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(slots=True)
class Declaration:
    """One setting. Its attribute, name and kind are set when its class is complete."""

    default: Any
    doc: str
    scope: Scope
    at_least: float | None
    at_most: float | None
    one_of: tuple[object, ...]
    inherits: tuple[str, ...]
    effect: Effect
    why: str
    attribute: str = ""
    name: str = ""
    kind: Kind = Kind.STRING
    nullable: bool = False

    @property
    def secret(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Any:
        """Return the value of a text; raise InvalidSetting with the expected form."""
        text = text.strip()
        value = self._typed(text)
        if value is None:
            return None
        problem = self._out_of_bounds(value)
        if problem:
            raise InvalidSetting(f"{self.name} {problem}, not {self._shown(text)}")
        return value

    def _typed(self, text: str) -> Any:
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() in ("true", "false"):
                    return text.lower() == "true"
                expected = "true or false"
            case Kind.SHORT | Kind.INT | Kind.LONG:
                if _WHOLE_NUMBER.fullmatch(text):
                    return int(text)
                expected = "a whole number"
            case Kind.DOUBLE:
                if _DECIMAL.fullmatch(text) and math.isfinite(value := float(text)):
                    return value
                expected = "a number"
            case Kind.LIST:
                return tuple(part.strip() for part in text.split(",")) if text else ()
            case _:
                return None if self.nullable and not text else text
        raise InvalidSetting(f"{self.name} must be {expected}, not {self._shown(text)}")

    def _out_of_bounds(self, value: Any) -> str:
        bits = _BITS.get(self.kind)
        least = self.at_least if self.at_least is not None else bits and -(1 << bits - 1)
        most = self.at_most if self.at_most is not None else bits and (1 << bits - 1) - 1
        if least is not None and value < least:
            return f"must be at least {least}"
        if most is not None and value > most:
            return f"must be at most {most}"
        choices = ", ".join(map(str, self.one_of))
        if self.kind is Kind.LIST:
            if self.one_of and not set(value) <= set(self.one_of):
                return f"may contain only {choices}"
            if "" in value:
                return "must not contain an empty entry"
        elif self.one_of and value not in self.one_of:
            return f"must be one of {choices}"
        return ""

    def _shown(self, text: str) -> str:
        if self.secret:
            return "the value given"
        return text if _DECIMAL.fullmatch(text) else repr(text)

    def text(self, value: Any) -> str | None:
        """Return a value in Kafka's text form; None for no value and for secrets."""
        if value is None or self.secret:
            return None
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value).replace("e+", "E") if isinstance(value, float) else str(value)


def setting(
    *,
    default: Any,
    doc: str,
    scope: Scope = Scope.FIXED,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[object, ...] = (),
    inherits: tuple[str, ...] = (),
    ignored: str = "",
    later: str = "",
) -> Any:
    """Declare a setting.

    `inherits` names the broker settings that a topic setting inherits, the strongest first.
    `ignored` is the reason why the setting has no effect, `later` the missing feature that it
    needs. With either, the broker logs a warning if the setting is set.
    """
    effect = Effect.NONE if ignored else Effect.LATER if later else Effect.FULL
    why = ignored or later
    return Declaration(default, doc, scope, at_least, at_most, one_of, inherits, effect, why)


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value of a setting at one source; the strongest source counts."""

    name: str
    text: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """A setting and its value, with all details for DescribeConfigs."""

    declared: Declaration
    value: Any
    source: Source
    synonyms: tuple[Synonym, ...]

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def text(self) -> str | None:
        return self.declared.text(self.value)

    @property
    def doc(self) -> str:
        """The meaning, and why the setting has no effect, if so."""
        about = self.declared
        return f"{about.doc} ({about.effect.value}: {about.why}.)" if about.why else about.doc

    @property
    def read_only(self) -> bool:
        return self.declared.scope is Scope.FIXED


Layer: TypeAlias = tuple[Source, Mapping[str, str]]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting,))
class Settings:
    """The base of all settings classes: frozen, keyword-only, equal by value."""

    # By Kafka's name, in declaration order.
    declared: ClassVar[dict[str, Declaration]] = {}
    # Prefixes of Kafka's names that belong to a missing feature, and that feature.
    absent: ClassVar[dict[str, str]] = {}

    # The texts of the values, the strongest source first.
    layers: ClassVar[tuple[Layer, ...]] = ()

    def __init_subclass__(cls) -> None:
        declared: dict[str, Declaration] = {}
        for base in cls.__bases__:
            declared.update(getattr(base, "declared", {}))
        for attribute, hint in cls.__annotations__.items():
            about = cls.__dict__.get(attribute)
            if isinstance(about, Declaration):
                plain = hint.removesuffix(" | None")
                about.attribute, about.name = attribute, attribute.replace("_", ".")
                about.kind, about.nullable = _KINDS[plain], plain != hint
                declared[about.name] = about
                setattr(cls, attribute, about.default)
        cls.declared = declared

    def __init__(self, **values: Any) -> None:
        known = {about.attribute for about in self.declared.values()}
        if unknown := values.keys() - known:
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(sorted(unknown))}")
        self.__dict__.update(values)

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(f"settings are frozen: {attribute} cannot be set")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, about.attribute) == getattr(other, about.attribute)
            for about in self.declared.values()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (
            f"{about.attribute}={'…' if about.secret else repr(value)}"
            for about, value in self._values()
            if value != about.default
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def _values(self) -> Iterator[tuple[Declaration, Any]]:
        for about in self.declared.values():
            yield about, getattr(self, about.attribute)

    @staticmethod
    def _described(about: Declaration, value: Any, synonyms: list[Synonym]) -> DescribedSetting:
        source = synonyms[0].source if synonyms else Source.DEFAULT
        if source is Source.DEFAULT and value != about.default:
            # The value was passed to the constructor, not as a text.
            source = Source.STATIC_BROKER
            synonyms.insert(0, Synonym(about.name, about.text(value), source))
        return DescribedSetting(about, value, source, tuple(synonyms))

    def replace(self, **values: Any) -> Self:
        """Return a copy with some values changed. The copy lacks the sources of its values."""
        kept = {about.attribute: value for about, value in self._values() if value != about.default}
        return type(self)(**(kept | values))

    @classmethod
    def parse(
        cls, given: Mapping[str, str], origin: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return attributes and values of texts by name. Raise InvalidSetting with all problems."""
        if len(given) > len(cls.declared):
            raise InvalidSetting(f"{len(given)} settings are given; there are {len(cls.declared)}")
        values = {}
        problems = []
        for name, text in given.items():
            about = cls.declared.get(name)
            try:
                if about is None:
                    raise InvalidSetting(cls._unknown(name))
                values[about.attribute] = about.parse(text)
            except InvalidSetting as wrong:
                where = (origin or {}).get(name)
                problems.append(f"{where}: {wrong}" if where else str(wrong))
        if problems:
            raise InvalidSetting(*problems)
        return values

    @classmethod
    def _unknown(cls, name: str) -> str:
        for beginning, feature in cls.absent.items():
            if name.startswith(beginning):
                return f"{name} cannot be set: {feature} is not in this version"
        import difflib

        close = difflib.get_close_matches(name, cls.declared, n=1, cutoff=0.75)
        return f"there is no setting {name}" + (f"; did you mean {close[0]}?" if close else "")
