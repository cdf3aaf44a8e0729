"""What does each key mean, for an editor and in an error?

Lives here: error texts for invalid confs (the key, a suggestion, the meaning of the key) and the
JSON Schema of conf files, derived from the settings classes. The schema is less strict than the
settings: formats of texts and combinations of keys are checked when the conf is loaded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etl.errors import SettingsError
from etl.settings.choices import GroupStrategy, StartAt
from etl.settings.conf_file import OF_ONE_PIPELINE, SHORT_FORMS
from etl.settings.secrets import REFERENCE_PATTERN, SIZE_PATTERN, is_secret
from etl.settings.sections import Settings

_PEM = "path of a PEM file"
_SECRET_REFERENCE = "as ${env:NAME} or ${file:/path}"
_SIZE = "a number, or a text with a unit such as 16 MiB"
MEANINGS: Mapping[str, str] = {
    "pipeline": "name in the ledger and in the table's commits: letters, digits, `.`, `_` and `-`, "
    "the first one a letter or digit",
    "defaults": "path of a file whose keys apply where this conf has none, relative to the conf",
    "source": "section of the brokers and topics; `topics` is required",
    "source.bootstrap_servers": "host:port,host:port of some brokers; null: the brokers in "
    "ZooKeeper",
    "source.topics": "topic names, or regular expressions that match whole names: [clicks, "
    "'orders-.*']",
    "source.exclude_topics": "topics to leave out, as regular expressions: ['.*-test']",
    "source.starting_offsets": "earliest, latest or a time such as 2026-01-31T00:00:00+00:00: "
    "start of topics without committed offsets",
    "source.new_topics_starting_offsets": "earliest or latest: start of topics that appear later",
    "source.on_data_loss": "fail: stop with exit 5 if offsets are gone; skip: record them as lost",
    "source.on_no_leader": "fail: stop with exit 6 if a partition has no leader; skip: leave it "
    "out",
    "source.wait_for_leader_s": "seconds to wait for a leader, 0 to 86400 (a day)",
    "source.isolation_level": "read_committed or read_uncommitted: Kafka's isolation.level",
    "source.broker_type": "kafka (Kafka 0.8 to 4.x) or jafka (Jafka, Kafka 0.7)",
    "source.broker_version": "Kafka release of the brokers, in quotes: '0.9'; null: ask them",
    "source.assume_cluster_id": "a name for the cluster, used where brokers report no cluster id",
    "source.listener": "name of a listener that brokers register in ZooKeeper; null: the first "
    "one of "
    "security.protocol",
    "source.security": "section of encryption and login",
    "source.security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL: protocol of the "
    "listener",
    "source.security.tls": "section of certificates",
    "source.security.tls.ca_file": f"{_PEM} with trusted authorities; null: the system's",
    "source.security.tls.cert_file": f"{_PEM} with the client certificate; null: none",
    "source.security.tls.key_file": f"{_PEM} with its key; null: cert_file contains it",
    "source.security.tls.key_password": f"password of the key, {_SECRET_REFERENCE}; null: none",
    "source.security.sasl": "section of the login",
    "source.security.sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI; "
    "null: no login",
    "source.security.sasl.username": "user of PLAIN or SCRAM, or a reference to it",
    "source.security.sasl.password": f"password of PLAIN or SCRAM, {_SECRET_REFERENCE}",
    "source.security.sasl.token": "token of OAUTHBEARER: module:function, aws-msk:REGION or a "
    "reference",
    "source.security.sasl.kerberos_service_name": "GSSAPI: service name of the brokers; null: "
    "kafka",
    "source.request_timeout_s": "deadline of a request in seconds, up to 86400 (a day)",
    "source.fetch_max_bytes": f"bytes of a fetch, 1024 or more: {_SIZE}",
    "source.max_batch_bytes": f"bytes of the largest record batch, at least fetch_max_bytes: "
    f"{_SIZE}",
    "source.max_record_bytes": f"bytes of the largest record; a larger one stops with exit 5: "
    f"{_SIZE}",
    "source.expiry_warning_s": "seconds, up to ten years: warn of unread records that expire "
    "within "
    "this time; 0: never",
    "source.assume_compacted": "topics to treat as compacted, as regular expressions",
    "table": "section of the table; `path` or `name` is required",
    "table.path": "directory, relative to the conf, or URL of a store: s3://, abfss:// or hdfs://; "
    "excludes table.name",
    "table.name": "CATALOG.SCHEMA.TABLE or SCHEMA.TABLE in Spark's catalogs; excludes table.path",
    "table.partition_by": "columns, as a list: [event_date]; event_date is the UTC date of "
    "timestamp",
    "table.writer": "spark, arrow (the tasks write the files) or auto (arrow where possible)",
    "table.compression": "uncompressed, snappy, lz4 or zstd; null: the writer's default",
    "table.target_file_bytes": f"size of data files, 1 MiB or more: {_SIZE}",
    "table.row_group_bytes": f"size of row groups in memory (arrow), 64 KiB to 1 GiB: {_SIZE}",
    "table.write_buffer_bytes": f"rows in a task's memory (arrow), 64 KiB to 4 GiB: {_SIZE}",
    "table.auto_compact_min_files": "a run compacts at so many small files; 0: never",
    "table.on_rows_removed": "fail: stop with exit 5 if another writer deleted rows; record: "
    "record it",
    "table.losses_path": "path of the table of lost offsets; null: PATH_losses",
    "table.store": "section of the store's endpoint and credentials; without it each engine uses "
    "its "
    "own chain",
    "table.store.endpoint": "URL of an S3 or Azure endpoint; null: the vendor's",
    "table.store.region": "S3 region such as eu-central-1; null: the environment's",
    "table.store.allow_http": "true: http:// endpoints are allowed; false: they are not",
    "table.store.access_key": f"S3 access key, {_SECRET_REFERENCE}; null: each engine's own chain",
    "table.store.secret_key": f"S3 secret key, {_SECRET_REFERENCE}; null: each engine's own chain",
    "table.store.account": "Azure storage account; null: the one in table.path",
    "table.store.account_key": f"key of the account, {_SECRET_REFERENCE}; null: each engine's own "
    f"chain",
    "transform": "section of your function on the rows; `transform: NAME` sets dataframe",
    "transform.dataframe": "package.module:function from DataFrame to DataFrame; null: none",
    "transform.record_batch": "package.module:function from RecordBatch to RecordBatch, in the "
    "tasks; "
    "null: none",
    "limits": "section of sizes",
    "limits.max_records_per_plan": "offsets per plan, 1 or more; null: no limit",
    "limits.max_bytes_per_plan": f"bytes per plan, 1 or more: {_SIZE}; null: no limit",
    "limits.target_task_bytes": f"bytes per task, 1 or more: {_SIZE}",
    "limits.local_below_bytes": f"run smaller plans without Spark (writer arrow or auto): "
    f"{_SIZE}; 0: never",
    "group": "section of the consumer group; `group: NAME` sets id",
    "group.id": "consumer group: letters, digits, `.`, `_` and `-`, and not dots alone",
    "group.offsets_storage": "zookeeper, kafka or dual (both): where the group's offsets are; with "
    "mode: join also which group is joined",
    "group.on_offset_changed": "fail: stop with exit 5 if another client committed; follow: "
    "continue "
    "there if it is ahead",
    "group.mode": "claim: own partitions during a run; observe: only check owners; join: be a "
    "member",
    "group.on_owned": "fail (exit 4), wait or skip: another consumer owns a partition",
    "group.on_active_members": "fail (exit 4) or skip (leave out what they own): active members "
    "in the "
    "group",
    "group.mirror_group": "another group in Kafka to commit to, for lag monitors; null: none",
    "group.join": "section of the membership, with mode: join",
    "group.join.commit_when": "before_read: commit offsets with the stored plan; after_append: "
    "after "
    "the append, if all members are ours",
    "group.join.leave_after": "run: leave the group at the end of the run; commit: after the "
    "offset "
    "commit",
    "group.join.assignment_strategy": "as the group's consumers: range, roundrobin, "
    "roundrobin-0.10 or "
    "roundrobin-1.0; in Kafka a list of range, roundrobin, sticky and cooperative-sticky",
    "group.join.protocol": "classic (0.9 to 4.x) or consumer (4.0 and later): Kafka's "
    "group.protocol",
    "group.join.instance_id": "name as a member, for one run at a time; in Kafka a static member; "
    "null: "
    "a name of the process",
    "group.join.num_streams": "consumer threads of a run in ZooKeeper's group, 1 to 10000",
    "group.join.join_timeout_s": "seconds to get an assignment, up to 86400 (a day)",
    "group.join.session_timeout_s": "session timeout in Kafka, 1 to 3600 seconds",
    "group.join.rebalance_timeout_s": "rebalance timeout in Kafka, 1 to 3600 seconds",
    "zookeeper": "section of ZooKeeper; `connect` is required",
    "zookeeper.connect": "host:port,host:port/chroot of the ZooKeeper of the brokers, or of the "
    "ledger "
    "alone",
    "zookeeper.session_timeout_s": "session and connect timeout, 1 to 3600 seconds",
    "zookeeper.acl": "open: all may change the ledger; creator: this login only",
    "zookeeper.tls": "section of encryption and certificates",
    "zookeeper.tls.enabled": "true: connections are encrypted; false: they are not; null: if "
    "another "
    "key of tls is set",
    "zookeeper.tls.ca_file": f"{_PEM} with trusted authorities; null: the system's",
    "zookeeper.tls.cert_file": f"{_PEM} with the client certificate; null: none",
    "zookeeper.tls.key_file": f"{_PEM} with its key; null: cert_file contains it",
    "zookeeper.tls.key_password": f"password of the key, {_SECRET_REFERENCE}; null: none",
    "zookeeper.auth": "section of the login",
    "zookeeper.auth.scheme": "sasl (DIGEST-MD5), digest, or x509 (by tls.cert_file); null: no "
    "login",
    "zookeeper.auth.username": "user of sasl or digest, or a reference to it",
    "zookeeper.auth.password": f"password of sasl or digest, {_SECRET_REFERENCE}",
    "ledger": "section of the ledger",
    "ledger.lock_timeout_s": "seconds to wait for another driver of this pipeline, or for owners "
    "(on_owned: wait), 0 to 86400 (a day)",
    "report": "section of run reports",
    "report.path": "directory of run reports, relative to the conf",
    "report.keep": "number of reports to keep, 1 to 1000000",
    "metrics": "section of Prometheus metrics",
    "metrics.path": "textfile (.prom) of Prometheus' node exporter, or its directory; null: none",
    "metrics.per_partition": "true: lag series per partition; false: per topic",
    "openlineage": "section of OpenLineage events",
    "openlineage.namespace": "namespace of the pipeline's job; null: no events",
    "spark": 'Spark properties, each a text: {spark.master: "local[4]"}',
}
"""The meaning of each key, in half a line."""
_MESSAGES = {
    "missing": "is missing",
    "string_pattern_mismatch": "has a form that this key does not accept",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a section with keys",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""By pydantic's error type. Its own messages are about Python types and patterns."""
_PASSWORD = re.compile(r"(?i)(?<=\w:)(?<!abfs:|bfss:|wasb:|asbs:)//[^/\s]*@|//[^/\s]*:[^/\s]*@")
"""Credentials in a URL: all before its @, except Azure's container."""


def conf_mistake(
    found: Sequence[Mapping[str, Any]],
    path: str | None,
    reference_at: Callable[[Sequence[int | str]], str | None],
) -> SettingsError:
    """Return all errors of a conf as one, with the `key` of the first.

    found          pydantic's errors (`type`, `loc`, `msg`, `input`)
    reference_at   returns the reference to a secret at a key; its value is then not shown
    """
    missing = {_key_of_mistake(one) for one in found if one["type"] == "missing"}
    sentences = dict[str, str]()
    misspelt = set[str]()
    for one in found:
        key = _key_of_mistake(one)
        similar = _similar_key(one)
        if similar in missing:
            misspelt.add(similar)
        if key not in sentences:
            sentences[key] = _sentence(one, similar, reference_at(one["loc"]))
    for key in misspelt:  # it is not missing, but has another spelling
        sentences.pop(key)

    first = next(iter(sentences))
    if len(sentences) == 1:
        sentence = sentences[first]
        message = f"{first}: {sentence}" if first else sentence
        return SettingsError(message, path=path, key=first or None, action=_action(first, sentence))
    lines = [f"{len(sentences)} keys of the conf are invalid:"]
    for key, sentence in sentences.items():
        line = f"{key}: {sentence}"
        meaning = _meaning(key)
        if meaning:
            line += f"; it takes {meaning}"
        lines.append(line)
    return SettingsError(
        "\n".join(lines),
        path=path,
        key=first or None,
        action="Check the spelling and the indentation of each of these keys",
    )


def _sentence(one: Mapping[str, Any], similar: str, reference: str | None) -> str:
    kind = one["type"]
    if kind == "extra_forbidden":
        return f"unknown key; did you mean `{similar}`?" if similar else "unknown key"
    if reference and not is_secret(_key_of_mistake(one)):
        # The value may be a secret: print neither it nor a message that quotes it.
        return f"refers to a value that it does not accept: {reference}"
    message = _MESSAGES.get(kind)
    if message is None:
        message = re.sub(r"^Input should be ", "must be ", one["msg"].removeprefix("Value error, "))
    if kind in ("enum", "literal_error"):  # write the choices as in a conf
        message = re.sub(r"<\w+\.\w+: (.*?)>", r"\1", message.replace("'", ""))
    return message + _shown_value(one)


def _shown_value(one: Mapping[str, Any]) -> str:
    """Return the value in parentheses, if it is neither a section nor a possible secret."""
    value = one["input"]
    is_plain = isinstance(value, (str, int, float, bool, type(None)))
    if one["type"] == "missing" or is_secret(_key_of_mistake(one)) or not is_plain:
        return ""
    if isinstance(value, int) and value.bit_length() > 64:
        value = "a number of many digits"  # Python does not convert the largest ones to text
    if isinstance(value, str):
        value = _PASSWORD.sub("//***@", value)
    return f" (it is {value!r})"


def _action(key: str, sentence: str) -> str:
    if sentence.startswith("unknown key"):
        section = key.rpartition(".")[0]
        names = _keys_of_section(section)
        if not names:
            return "Check its spelling and its indentation"
        return (
            "Check its spelling and its indentation. "
            f"{section or 'The conf'} takes {', '.join(names)}"
        )
    meaning = _meaning(key)
    if not meaning:
        return "Check the spelling of the key, and its value"
    return f"{key} takes {meaning}"


def _keys_of_section(section: str) -> list[str]:
    """Return the names of the keys right in a section; of the conf for an empty name."""
    names = []
    for key in MEANINGS:
        above, _, name = key.rpartition(".")
        if above == section:
            names.append(name)
    return names


def _meaning(key: str) -> str:
    """Return the meaning of a key, or of its list or mapping."""
    while key and key not in MEANINGS:
        key = key.rpartition(".")[0]
    return MEANINGS.get(key, "")


def _similar_key(one: Mapping[str, Any]) -> str:
    """Return a known key for an unknown one: of the same section with a similar name, or of another
    section with the same name; empty without one.
    """
    if one["type"] != "extra_forbidden":
        return ""
    section, _, name = _key_of_mistake(one).rpartition(".")
    similar = difflib.get_close_matches(name, _keys_of_section(section), n=1)
    if similar:
        return f"{section}.{similar[0]}".lstrip(".")
    for known in MEANINGS:
        if known.rpartition(".")[2] == name:
            return known
    return ""


def _key_of_mistake(one: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in one["loc"])


SCHEMA_FILE = "pipeline.schema.json"
"""Name of the schema file that `etl init` writes next to a conf."""
_TEXT = {"type": "string", "minLength": 1}
_REFERENCE = {"type": "string", "pattern": REFERENCE_PATTERN}
"""Any value may be a reference, also of a key that is not a string."""
_STRATEGY = {"enum": [one.value for one in GroupStrategy]}
_OWN_FORMS: Mapping[str, list[dict[str, Any]]] = {
    "source.starting_offsets": [{"enum": [one.value for one in StartAt]}, _TEXT],
    "group.join.assignment_strategy": [
        _STRATEGY,
        {"type": "array", "minItems": 1, "items": _STRATEGY},
    ],
    "spark": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    ],
}
"""Keys with custom validators: pydantic cannot derive their forms."""
_EITHER: Mapping[str, tuple[str, ...]] = {"table": ("path", "name")}
"""Sections that need one of several keys."""


def conf_schema(*, for_defaults: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a conf; with `for_defaults` of a file of defaults, which requires
    no key and cannot have the keys of one pipeline.
    """
    whole = Settings.model_json_schema()
    keys = _section(whole, whole["$defs"], "")
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    if for_defaults:
        properties = {
            name: key for name, key in keys["properties"].items() if name not in OF_ONE_PIPELINE
        }
        return {
            **head,
            "title": "Defaults of several pipelines of offset-range-etl",
            **keys,
            "properties": properties,
        }
    by_defaults = {"required": ["defaults"], "properties": {"defaults": _TEXT}}
    needed = _needed(whole, whole["$defs"])
    return {
        **head,
        "title": "A pipeline of offset-range-etl",
        **keys,
        "required": ["pipeline"],
        "anyOf": [needed, by_defaults],
    }


def _section(node: Mapping[str, Any], known: Mapping[str, Any], above: str) -> dict[str, Any]:
    properties = {}
    for name, key in node["properties"].items():
        if "$ref" in key:
            key = {**known[_name(key)], **key}
        properties[name] = _key(key, known, above + name)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _key(node: Mapping[str, Any], known: Mapping[str, Any], key: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": MEANINGS[key]}
    if "properties" in node:
        section = _section(node, known, f"{key}.")
        if key in SHORT_FORMS:
            section["type"] = ["object", "string", "null"]
        return {**schema, **section}
    if node.get("default") is not None:
        schema["default"] = node["default"]
    forms = _OWN_FORMS.get(key) or _forms(node)
    if "_bytes" in key:
        forms = [*forms, {"type": "string", "pattern": f"^{SIZE_PATTERN}$"}]
    return {**schema, **_one_of(forms)}


def _forms(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each form that a key accepts: a list may be one string, a value a reference."""
    forms = []
    for written in node.get("anyOf", [node]):
        form = dict(written)
        for name in ("title", "default", "description", "$ref"):
            form.pop(name, None)
        forms.append(form)
    if any(form.get("type") == "array" for form in forms):
        return [_TEXT, *forms]
    if _REFERENCE in forms or any(_is_any_text(form) for form in forms):
        return forms
    return [*forms, _REFERENCE]


def _is_any_text(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "string" and not {"enum", "const", "pattern"} & form.keys()


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _needed(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of required keys, section by section."""
    below = {}
    for name, key in node["properties"].items():
        if "$ref" not in key:
            continue
        section = known[_name(key)]
        if section.get("required"):
            below[name] = _needed(section, known)
        if name in _EITHER:
            below[name] = {"anyOf": [{"required": [one]} for one in _EITHER[name]]}
    needed = {"required": node["required"]}
    if below:
        needed["properties"] = below
    return needed


def _name(key: Mapping[str, Any]) -> str:
    return str(key["$ref"]).rpartition("/")[2]
