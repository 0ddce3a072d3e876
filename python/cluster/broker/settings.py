"""The settings of brokers and topics: name, type, default, bounds, and the parsing of a value.

Parses as Kafka's `ConfigDef` does. The facts are in `_setting_tables`; rules between settings are in
`config`. The start, CreateTopics and DescribeConfigs all use this module, so they agree on what is allowed.
Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from cluster.broker import _setting_tables as tables
from cluster.broker.kafka_versions import is_kafka_version

Value = bool | int | float | str | list[str] | None

_INTEGER_BITS = {"short": 16, "int": 32, "long": 64}

CONFIG_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
"""The numbers of the types in DescribeConfigs (`DescribeConfigsResponse.ConfigType`)."""


class ConfigError(ValueError):
    """A setting that cannot be used; the text has its name, its value and the allowed values."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value} is not allowed: {allowed}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    `dynamic` (broker settings only): it can be changed while the broker runs. `has_effect`: this broker uses
    it. `synonyms` (topic settings only): broker settings, each with the factor to this setting's unit.
    """

    name: str
    type: str
    default: str | None
    valid: str
    dynamic: bool
    has_effect: bool
    internal: bool
    synonyms: tuple[tuple[str, int], ...] = ()

    @property
    def sensitive(self) -> bool:
        """Its value is never shown."""
        return self.type == "password"

    def parse(self, text: str) -> Value:
        """The value of `text`. Raises ConfigError if it has the wrong type or is outside the bounds."""
        value = self._typed(text.strip())
        if self.valid != "-":
            self._check(value, text)
        return value

    def default_value(self) -> Value:
        """The default as a value; None if there is none."""
        return None if self.default is None else self._typed(self.default)

    def _typed(self, text: str) -> Value:
        if self.type == "boolean":
            if text.lower() not in ("true", "false"):
                raise ConfigError(self.name, text, "true or false is needed")
            return text.lower() == "true"
        if self.type in _INTEGER_BITS:
            return self._integer(text)
        if self.type == "double":
            try:
                return float(text)
            except ValueError:
                raise ConfigError(self.name, text, "a number is needed") from None
        if self.type == "list":
            return [word.strip() for word in text.split(",")] if text else []
        return text

    def _integer(self, text: str) -> int:
        try:
            number = int(text) if "_" not in text else None
        except ValueError:
            number = None
        if number is None:
            raise ConfigError(self.name, text, "a whole number is needed")
        bound = 1 << (_INTEGER_BITS[self.type] - 1)
        if not -bound <= number < bound:
            raise ConfigError(self.name, text, f"a number from {-bound} to {bound - 1} is needed")
        return number

    def _check(self, value: Value, text: str) -> None:
        if self.valid == "version":
            if not is_kafka_version(str(value)):
                raise ConfigError(
                    self.name,
                    text,
                    f"Version {value} is not a valid version: a Kafka version up to 3.9 is needed, for "
                    "example 3.0 or 3.0-IV1",
                )
        elif isinstance(value, list):
            choices = self.valid.split("|")
            if any(word not in choices for word in value):
                raise ConfigError(self.name, text, f"a list of {_enumerated(choices)} is needed")
        elif isinstance(value, str):
            choices = self.valid.split("|")
            if value not in choices:
                raise ConfigError(self.name, text, f"{_enumerated(choices)} is needed")
        elif isinstance(value, int | float) and not any(
            _within(value, part) for part in self.valid.split("|")
        ):
            raise ConfigError(self.name, text, f"a number {self._bounds()} is needed")

    def _bounds(self) -> str:
        parts = []
        for part in self.valid.split("|"):
            low, dots, high = part.partition("..")
            parts.append(low if not dots else f"from {low} to {high}" if high else f"of at least {low}")
        return " or ".join(parts)


def _within(value: float, part: str) -> bool:
    low, dots, high = part.partition("..")
    if not dots:
        return value == float(low)
    return value >= float(low) and (not high or value <= float(high))


def _enumerated(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def as_text(value: Value) -> str | None:
    """The text of a value, as DescribeConfigs shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return java_double(value) if isinstance(value, float) else str(value)


def java_double(value: float) -> str:
    """A number as Java writes it (`Double.toString`): 0.5, 1.0E7."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


@cache
def broker_settings() -> dict[str, Setting]:
    """Every broker setting of Kafka and of this broker, by name."""
    effective = _read(tables.BROKER, True) | _read(tables.OWN, True)
    return _by_name(effective | _read(tables.BROKER_NO_EFFECT, False))


@cache
def rate_settings() -> dict[str, Setting]:
    """Rates that Kafka takes only from ZooKeeper and does not list with a broker's settings, by name
    (`QuotaConfigs.brokerQuotaConfigs`).
    """
    return _read(tables.RATES, True)


@cache
def topic_settings() -> dict[str, Setting]:
    """Every topic setting of Kafka, by name."""
    return _by_name(_read(tables.TOPIC, True) | _read(tables.TOPIC_NO_EFFECT, False))


def _by_name(settings: dict[str, Setting]) -> dict[str, Setting]:
    return {name: settings[name] for name in sorted(settings)}


def _read(table: str, has_effect: bool) -> dict[str, Setting]:
    settings = {}
    for line in table.split("\n"):
        if not line:
            continue
        name, kind, default, valid, flags, *rest = line.split(" ")
        settings[name] = Setting(
            name=name,
            type=kind,
            default=None if default == "~" else "" if default == '""' else default,
            valid=valid,
            dynamic="d" in flags,
            has_effect=has_effect,
            internal="i" in flags,
            synonyms=_synonyms(rest[0]) if rest else (),
        )
    return settings


def _synonyms(text: str) -> tuple[tuple[str, int], ...]:
    if text == "-":
        return ()
    pairs = (word.partition("*") for word in text.split(","))
    return tuple((name, int(factor or 1)) for name, _, factor in pairs)
