"""`logcore configs`: the flags and output of kafka-configs.sh (ConfigCommand of Apache Kafka 3.9)."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cluster.cli._admin_tool import REQUEST_TIMEOUT, administer, java_exception, reason
from cluster.cli._common import CommandError
from cluster.cli._config_options import (
    BROKER_LOGGERS,
    BROKERS,
    CLIENT_METRICS,
    CLIENTS,
    DEFAULT,
    IPS,
    TOPICS,
    USERS,
    Entities,
    added,
    check,
    deleted,
    parser,
    wrong,
)
from cluster.cli._deserializers import java_decimal

if TYPE_CHECKING:
    from cluster.client import AdminClient

__all__ = ["parser", "run"]

RESOURCE_TYPES = {TOPICS: 2, BROKERS: 4, BROKER_LOGGERS: 8, CLIENT_METRICS: 16}
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
}
SET, DELETE = 0, 1

QUOTA_TYPES = {USERS: "user", CLIENTS: "client-id", IPS: "ip"}
QUOTA_WORDS = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
CLIENT_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "request_percentage")
IP_QUOTAS = ("connection_creation_rate",)

SCRAM = {"SCRAM-SHA-256": "SCRAM_SHA_256", "SCRAM-SHA-512": "SCRAM_SHA_512"}
SCRAM_ITERATIONS = 4096
"""Kafka's default, and the fewest that it takes."""


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    entities = check(options)
    if options.describe:
        with administer("configs", options.bootstrap_server, options.command_config) as admin:
            describe(admin, entities, options.all)
        return 0
    settings, removed = added(options), deleted(options)
    if "message.format.version" in settings:
        print(
            f"WARNING: The configuration message.format.version={settings['message.format.version']} is "
            "specified. This configuration will be ignored if the version is newer than the "
            "inter.broker.protocol.version specified in the broker or if the inter.broker.protocol.version "
            "is 3.0 or newer. This configuration is deprecated and it will be removed in Apache Kafka 4.0."
        )
    with administer("configs", options.bootstrap_server, options.command_config) as admin:
        alter(admin, entities, settings, removed)
    return 0


def alter(admin: AdminClient, entities: Entities, settings: dict[str, str], removed: list[str]) -> None:
    kind, name = entities.types[0], entities.names[0]
    if kind in RESOURCE_TYPES:
        alter_resource(admin, kind, name, settings, removed)
    elif kind == IPS:
        if unknown := [key for key in (*settings, *removed) if key not in IP_QUOTAS]:
            raise wrong(
                f"Only connection quota configs can be added for '{IPS}' using --bootstrap-server. "
                f"Unexpected config names: {','.join(unknown)}"
            )
        alter_quotas(admin, entities, settings, removed)
    else:
        check_user_settings(entities, settings, removed)
        if any(key in CLIENT_QUOTAS for key in (*settings, *removed)):
            alter_quotas(admin, entities, settings, removed)
        else:
            alter_scram(admin, name, settings, removed)
    if name:
        print(f"Completed updating config for {kind.removesuffix('s')} {name}.")
    else:
        print(f"Completed updating default config for {kind} in the cluster.")


def alter_resource(
    admin: AdminClient, kind: str, name: str, settings: dict[str, str], removed: list[str]
) -> None:
    from cluster.client import alter_config_entries

    known = [entry["name"] for entry in entries_of(admin, kind, name, everything=False)]
    unknown = [key for key in removed if key not in known]
    if kind == BROKER_LOGGERS:
        unknown += [key for key in settings if key not in known]
    if unknown:
        word = "broker logger" if kind == BROKER_LOGGERS else "config"
        raise CommandError(f"Invalid {word}(s): {','.join(unknown)}")
    changes: list[dict[str, Any]] = [
        {"name": key, "config_operation": SET, "value": value} for key, value in settings.items()
    ]
    changes += [{"name": key, "config_operation": DELETE, "value": None} for key in removed]
    alter_config_entries(admin, RESOURCE_TYPES[kind], name, changes, timeout=REQUEST_TIMEOUT)


def check_user_settings(entities: Entities, settings: dict[str, str], removed: list[str]) -> None:
    """Refuses names that are neither quotas nor, for a user alone, SCRAM mechanisms."""
    of_user = entities.types == [USERS]
    for verb, names in (("added", list(settings)), ("deleted", removed)):
        unknown = [key for key in names if key not in CLIENT_QUOTAS and not (of_user and key in SCRAM)]
        if unknown:
            what = f"quota and SCRAM credential configs can be {verb} for '{USERS}'"
            if not of_user:
                what = f"quota configs can be {verb} for '{CLIENTS}'"
            raise wrong(f"Only {what} using --bootstrap-server. Unexpected config names: {','.join(unknown)}")
    names = [*settings, *removed]
    if any(key in SCRAM for key in names):
        if DEFAULT in entities.names:
            raise wrong(
                "The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials "
                "using --bootstrap-server."
            )
        if any(key in CLIENT_QUOTAS for key in names):
            raise wrong(
                "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using "
                "--bootstrap-server."
            )


def alter_quotas(
    admin: AdminClient, entities: Entities, settings: dict[str, str], removed: list[str]
) -> None:
    from cluster.client import alter_client_quotas

    changes: dict[str, float | None] = {}
    for key, text in settings.items():
        try:
            changes[key] = float(text)
        except ValueError:
            raise wrong(f"Cannot parse quota configuration value for {key}: {text}") from None
    found = quotas_of(admin, entities)
    known = found[0].values if found else {}
    if unknown := [key for key in removed if key not in known]:
        raise CommandError(f"Invalid config(s): {','.join(unknown)}")
    changes.update(dict.fromkeys(removed))
    entity = {
        QUOTA_TYPES[kind]: name or None for kind, name in zip(entities.types, entities.names, strict=True)
    }
    alter_client_quotas(admin, entity, changes, timeout=REQUEST_TIMEOUT)


def alter_scram(admin: AdminClient, user: str, settings: dict[str, str], removed: list[str]) -> None:
    from cluster.client import (
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialAlteration,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )

    alterations: list[UserScramCredentialAlteration] = [
        UserScramCredentialDeletion(user, ScramMechanism[SCRAM[key]]) for key in removed
    ]
    for key, text in settings.items():
        iterations, password = scram_credential(key, text)
        info = ScramCredentialInfo(ScramMechanism[SCRAM[key]], iterations)
        alterations.append(UserScramCredentialUpsertion(user, info, password.encode()))
    altered = admin.alter_user_scram_credentials(alterations, request_timeout=REQUEST_TIMEOUT)
    for future in altered.values():
        future.result()


def scram_credential(mechanism: str, text: str) -> tuple[int, str]:
    """Parses `iterations=8192,password=secret`. Raises CommandError."""
    match = re.fullmatch(r"(?:iterations=(-?[0-9]*),)?password=(.*)", text)
    if match is None or match[1] in ("", "-"):
        raise wrong(f"Invalid credential property {SCRAM[mechanism]}={text}")
    iterations = SCRAM_ITERATIONS if match[1] in (None, "-1") else int(match[1])
    if iterations < SCRAM_ITERATIONS:
        raise wrong(
            f"Iterations {iterations} is less than the minimum {SCRAM_ITERATIONS} required for {mechanism}"
        )
    return iterations, match[2]


def describe(admin: AdminClient, entities: Entities, everything: bool) -> None:
    kind = entities.types[0]
    if kind in RESOURCE_TYPES:
        describe_resources(admin, kind, entities.name, everything)
        return
    describe_quotas(admin, entities)
    if kind == USERS and CLIENTS not in entities.types and DEFAULT not in entities.names:
        describe_scram(admin, entities.names)


def describe_resources(admin: AdminClient, kind: str, name: str | None, everything: bool) -> None:
    from cluster.client import list_client_metrics_resources

    if name is not None:
        names = [name]
    elif kind == TOPICS:
        names = sorted(admin.list_topics(timeout=REQUEST_TIMEOUT).topics)
    elif kind == CLIENT_METRICS:
        names = list_client_metrics_resources(admin, timeout=REQUEST_TIMEOUT)
    else:
        brokers = admin.list_topics(timeout=REQUEST_TIMEOUT).brokers
        names = [*map(str, sorted(brokers)), DEFAULT]
    for one in names:
        if one == DEFAULT:
            print(f"Default configs for {kind} in the cluster are:")
        else:
            which = "All" if everything else "Dynamic"
            print(f"{which} configs for {kind.removesuffix('s')} {one} are:")
        for entry in entries_of(admin, kind, one, everything):
            synonyms = ", ".join(
                f"{SOURCES.get(synonym['source'], 'UNKNOWN')}:{synonym['name']}={_text(synonym['value'])}"
                for synonym in entry["synonyms"]
            )
            print(
                f"  {entry['name']}={_text(entry['value'])} sensitive={str(entry['is_sensitive']).lower()} "
                f"synonyms={{{synonyms}}}"
            )


def entries_of(admin: AdminClient, kind: str, name: str, everything: bool) -> list[dict[str, Any]]:
    """The settings of a resource by name; unless `everything`, those that were set dynamically on it."""
    from cluster.client import describe_config_entries

    if kind in (BROKERS, BROKER_LOGGERS) and name != DEFAULT:
        brokers = admin.list_topics(timeout=REQUEST_TIMEOUT).brokers
        # Only the broker itself knows its settings.
        if int(name) not in brokers:
            alive = ",".join(map(str, sorted(brokers)))
            raise CommandError(f"broker {name} is not running; the brokers that are: {alive}")
    sources = {TOPICS: 1, BROKERS: 3 if name == DEFAULT else 2, CLIENT_METRICS: 7}
    entries = describe_config_entries(admin, RESOURCE_TYPES[kind], name, timeout=REQUEST_TIMEOUT)
    if not everything and kind in sources:
        entries = [entry for entry in entries if entry["config_source"] == sources[kind]]
    return sorted(entries, key=lambda entry: str(entry["name"]))


def quotas_of(admin: AdminClient, entities: Entities) -> list[Any]:
    from cluster.client import QuotaFilter, describe_client_quotas

    filters = [
        QuotaFilter(QUOTA_TYPES[kind], any=True)
        if name is None
        else QuotaFilter(QUOTA_TYPES[kind], name or None)
        for kind, name in zip_longest(entities.types, entities.names)
    ]
    return describe_client_quotas(admin, filters, timeout=REQUEST_TIMEOUT)


def describe_quotas(admin: AdminClient, entities: Entities) -> None:
    lines = []
    for quota in quotas_of(admin, entities):
        who = ", ".join(
            f"the default {word}" if quota.entity[kind] is None else f"{word} '{quota.entity[kind]}'"
            for kind, word in QUOTA_WORDS.items()
            if kind in quota.entity
        )
        shown = ", ".join(
            f"{key}={java_decimal(quota.values[key], repr(quota.values[key]))}"
            for key in sorted(quota.values)
        )
        lines.append(f"Quota configs for {who} are {shown}")
    for line in sorted(lines):
        print(line)


def describe_scram(admin: AdminClient, users: list[str]) -> None:
    from cluster.client import KafkaError, describe_scram_credentials

    words = {value: key for key, value in SCRAM.items()}
    for user, found in describe_scram_credentials(admin, users or None, timeout=REQUEST_TIMEOUT).items():
        if not isinstance(found, KafkaError):
            shown = ", ".join(
                f"{words.get(info.mechanism.name, 'UNKNOWN')}=iterations={info.iterations}"
                for info in found.scram_credential_infos
            )
            print(f"SCRAM credential configs for user-principal '{user}' are {shown}")
        elif found != KafkaError.RESOURCE_NOT_FOUND:
            exception = java_exception(found).rpartition(".")[2]
            print(
                f"Error retrieving SCRAM credential configs for user-principal '{user}': "
                f"{exception}: {reason(found)}"
            )


def _text(value: str | None) -> str:
    return "null" if value is None else value
