"""What settings there are: names, types, defaults, bounds; and how a text becomes a value.

Owns the tables of broker and topic settings and the parsing of one value, as Kafka's `ConfigDef` does it.
Owns no file and no cross checks (those are `config.py`'s). Pure; any thread. Serves the start, CreateTopics
and DescribeConfigs alike, so that all three agree on what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from cluster.broker import _broker_table, _own_table, _topic_table
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
    """A setting that cannot be used; names the setting, its value and what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value} is not allowed: {allowed}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `synonyms` (topic settings only) are broker settings and the factor to this setting's
    unit. `dynamic` (broker settings only) says that it can be changed while the broker runs.
    """

    name: str
    type: str
    default: str | None
    valid: str
    dynamic: bool
    supported: bool
    internal: bool
    synonyms: tuple[tuple[str, int], ...] = ()

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.type == "password"

    def parse(self, text: str) -> Value:
        """The value `text` stands for; ConfigError when it is of the wrong type or outside the bounds."""
        value = self._typed(text.strip())
        if self.valid != "-":
            self._check(value, text)
        return value

    def default_value(self) -> Value:
        """The default as a value; None when the setting has none."""
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
                    f"Version {value} is not a valid version: one of Kafka's up to 3.9 is needed, as in 3.0 or 3.0-IV1",
                )
        elif isinstance(value, list):
            choices = self.valid.split("|")
            if any(word not in choices for word in value):
                raise ConfigError(self.name, text, f"a list of {_spoken(choices)} is needed")
        elif isinstance(value, str):
            choices = self.valid.split("|")
            if value not in choices:
                raise ConfigError(self.name, text, f"{_spoken(choices)} is needed")
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


def _spoken(choices: list[str]) -> str:
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
    """Every broker setting Kafka knows, and our own, by name."""
    return _read(_broker_table.TABLE) | _read(_own_table.TABLE)


@cache
def rate_settings() -> dict[str, Setting]:
    """Rates that Kafka takes from the coordinator only, and does not list with a broker's settings, by name
    (`QuotaConfigs.brokerQuotaConfigs`).
    """
    return _read(
        "leader.replication.throttled.rate long 9223372036854775807 0.. d\n"
        "follower.replication.throttled.rate long 9223372036854775807 0.. d\n"
        "replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. ds"
    )


@cache
def topic_settings() -> dict[str, Setting]:
    """Every topic setting Kafka knows, by name."""
    return _read(_topic_table.TABLE)


def _read(table: str) -> dict[str, Setting]:
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
            supported="s" in flags,
            internal="i" in flags,
            synonyms=_synonyms(rest[0]) if rest else (),
        )
    return settings


def _synonyms(text: str) -> tuple[tuple[str, int], ...]:
    if text == "-":
        return ()
    pairs = (word.partition("*") for word in text.split(","))
    return tuple((name, int(factor or 1)) for name, _, factor in pairs)
