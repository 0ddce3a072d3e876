"""A registry of schemas, in Confluent's REST API. Asked by the process that plans a query, and by tasks."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

TIMEOUT = 30.0
"""Seconds for each question."""
URL, USER = "schema.registry.url", "schema.registry.basic.auth.user.info"
"""The options."""

_schemas: dict[tuple[str, int], str] = {}
"""Schemas by the registry's URL and the id."""


@dataclass(frozen=True)
class Registry:
    """Pickled into tasks."""

    url: str
    """Without a password."""
    user: str = field(default="", repr=False)
    """`user:password`; empty for none."""

    def latest(self, subject: str) -> str:
        """The Avro schema of a subject's latest version. Raises ValueError if there is none, RuntimeError if
        the registry does not answer.
        """
        found = self._get(f"subjects/{quote(subject, safe='')}/versions/latest")
        schema = None if found is None else self._avro(found)
        if schema is None:
            raise ValueError(f"option {URL!r}: {self.url} has no Avro schema {subject!r}")
        return schema

    def by_id(self, number: int) -> str | None:
        """The Avro schema with this id, None if the registry has none. It never changes, so that it is asked
        for once a process. Raises RuntimeError if the registry does not answer.
        """
        known = _schemas.get((self.url, number))
        if known is None:
            found = self._get(f"schemas/ids/{number}")
            known = None if found is None else self._avro(found)
            if known is not None:
                _schemas[self.url, number] = known
        return known

    def _avro(self, found: Mapping[str, Any]) -> str | None:
        """The text of a schema, which has those to which it refers in it. None if it is not Avro."""
        if found.get("schemaType", "AVRO") != "AVRO" or not isinstance(found.get("schema"), str):
            return None
        named: dict[str, Any] = {}
        self._add_references(found, named, frozenset())
        return json.dumps(_inline(json.loads(found["schema"]), "", named)) if named else str(found["schema"])

    def _add_references(
        self, found: Mapping[str, Any], named: dict[str, Any], above: frozenset[tuple[str, int]]
    ) -> None:
        """Adds the types to which a schema refers, by their full names."""
        for one in found.get("references") or ():
            subject, version = str(one["subject"]), int(one["version"])
            answer = self._get(f"subjects/{quote(subject, safe='')}/versions/{version}")
            if answer is None or not isinstance(answer.get("schema"), str) or (subject, version) in above:
                raise RuntimeError(
                    f"{self.url} has no version {version} of {subject!r}, to which a schema refers"
                )
            self._add_references(answer, named, above | {(subject, version)})
            named[str(one["name"])] = json.loads(answer["schema"])

    def _get(self, path: str) -> dict[str, Any] | None:
        url = f"{self.url}/{path}"
        # The scheme was checked: http or https.
        request = urllib.request.Request(url)
        if self.user:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.user.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                found = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            why = f"; set option {USER!r} to user:password" if error.code == 401 and not self.user else ""
            raise RuntimeError(f"the schema registry refused {url}: {error}{why}") from None
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the schema registry does not answer {url}: {error}") from None
        if not isinstance(found, dict):
            raise RuntimeError(f"{url} is not a schema registry's: it answered {found!r}")
        return found


def _inline(schema: Any, namespace: str, named: dict[str, Any]) -> Any:
    """The schema with each type of `named` in place of its first name. Takes these types from `named`.

    Source: Avro 1.11, section Names.
    """
    if isinstance(schema, str):
        full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        found = named.pop(full, None)
        return schema if found is None else _inline(found, "", named)
    if isinstance(schema, list):
        return [_inline(one, namespace, named) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = namespace
    if "name" in schema:
        before, _, _ = str(schema["name"]).rpartition(".")
        inner = before or str(schema.get("namespace", namespace))
    parts = {key: _inline(schema[key], inner, named) for key in ("type", "items", "values") if key in schema}
    if isinstance(schema.get("fields"), list):
        parts["fields"] = [{**one, "type": _inline(one["type"], inner, named)} for one in schema["fields"]]
    return {**schema, **parts}


def parse_registry(options: Mapping[str, str]) -> Registry | None:
    """Parses the options, whose names are in lower case. None if there is no registry. Raises ValueError."""
    user, url = options.get(USER, ""), options.get(URL)
    if url is None:
        if user:
            raise ValueError(f"option {USER!r} needs option {URL!r}")
        return None
    parts = urlsplit(url.strip())
    within, _, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"option {URL!r} must be http://... or https://..., not {url!r}")
    user = user or unquote(within)
    if user and ":" not in user:
        raise ValueError(f"option {USER!r} must be user:password")
    return Registry(urlunsplit(parts._replace(netloc=host)).rstrip("/"), user)
