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
from etl.settings.conf_file import OF_ONE_PIPELINE
from etl.settings.secrets import REFERENCE_PATTERN, is_secret
from etl.settings.sections import Settings

MEANINGS: Mapping[str, str] = {
    "version": "the number 1",
    "defaults": "the file whose keys hold where this one has none, seen from the conf file's folder; null for none",
    "pipeline": "a name for this pipeline's plans and commits: letters, digits, `.`, `_` and `-`, and not dots alone",
    "cluster": "a name for the cluster, only where its brokers tell no id: letters, digits, `.`, `_` and `-`, and not dots alone",
    "group": "the consumer group whose offsets are read and moved: letters, digits, `.`, `_` and `-`, and not dots alone",
    "mirror_group": "a group kept by Kafka's brokers, another than `group`, whose offsets lag monitors look at; null for none",
    "zookeeper": "keys of its own, `connect` first of all",
    "zookeeper.connect": "host:port,host:port/chroot of the ZooKeeper that has the offsets",
    "zookeeper.session_timeout_s": "seconds, 1 to 3600",
    "zookeeper.connect_timeout_s": "seconds, more than 0 and up to 3600",
    "zookeeper.tls": "keys of its own, each with a default",
    "zookeeper.tls.enabled": "true: connections are encrypted; false: they are not; null: where another key of tls is set",
    "zookeeper.tls.ca_file": "a PEM file of the authorities that are trusted; null for the system's",
    "zookeeper.tls.cert_file": "a PEM file with our own certificate, where the servers ask for one; null for none",
    "zookeeper.tls.key_file": "a PEM file with its key; null where cert_file holds that, too",
    "zookeeper.tls.key_password": "a reference to the key's password, ${env:NAME} or ${file:/path}; null for none",
    "zookeeper.auth": "keys of its own, `scheme` first of all",
    "zookeeper.auth.scheme": "sasl (DIGEST-MD5), digest, or x509 (tls.cert_file says who we are); null where there is no login",
    "zookeeper.auth.username": "the name to log in as by sasl or digest, or a reference to it",
    "zookeeper.auth.password": "a reference to the password, ${env:NAME} or ${file:/path}",
    "zookeeper.acl": "open: everybody may change what the pipeline keeps; creator: whoever logs in as we do, and others read",
    "source": "keys of its own, `topics` first of all",
    "source.dialect": "kafka, or jafka for Jafka and Kafka 0.7",
    "source.bootstrap": "host:port,host:port of some brokers; null takes them from ZooKeeper",
    "source.listener": "the name of a listener of the brokers, as they register it in ZooKeeper; null for the first of security.protocol",
    "source.security": "keys of its own, each with a default",
    "source.security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as the brokers' listener has it",
    "source.security.tls": "keys of its own, each with a default",
    "source.security.tls.ca_file": "a PEM file of the authorities that are trusted; null for the system's",
    "source.security.tls.cert_file": "a PEM file with our own certificate, where brokers ask for one; null for none",
    "source.security.tls.key_file": "a PEM file with its key; null where cert_file holds that, too",
    "source.security.tls.key_password": "a reference to the key's password, ${env:NAME} or ${file:/path}; null for none",
    "source.security.sasl": "keys of its own, `mechanism` first of all",
    "source.security.sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI; null where there is no login",
    "source.security.sasl.username": "the name to log in as by PLAIN or SCRAM, or a reference to it",
    "source.security.sasl.password": "a reference to the password, ${env:NAME} or ${file:/path}",
    "source.security.sasl.token": "where tokens of OAUTHBEARER come from: module:function, aws-msk:REGION or a reference",
    "source.security.sasl.service": "Kerberos' name of the brokers' service, kafka unless given",
    "source.broker_version": "the release of Kafka that brokers are spoken to as, in quotes: '0.9'; null asks them",
    "source.topics": "{allow: [clicks]}, and with `deny` what is left out of that",
    "source.topics.allow": "regular expressions that match whole topic names, as a list: [clicks, 'orders-.*']",
    "source.topics.deny": "regular expressions that match whole topic names, as a list: ['.*-test']",
    "source.start": "where topics start at the first run: earliest, latest or {timestamp: 2026-01-31T00:00:00+00:00}",
    "source.start.timestamp": "a time with its UTC offset: 2026-01-31T00:00:00+00:00",
    "source.new_topics_starting_offsets": "where topics start that appear later: earliest or latest",
    "source.on_data_loss": "fail: stop where wanted offsets are gone; skip: go on behind them",
    "source.on_offset_changed": "fail: stop where somebody moved a committed offset; follow: go on from there, forwards only",
    "source.on_no_leader": "fail: stop where a partition has no leader; skip: leave it for the next run",
    "source.wait_for_leader_s": "seconds, 0 to 86400 (a day)",
    "source.isolation": "read_committed (aborted transactions are skipped) or read_uncommitted",
    "source.fetch_max_bytes": "bytes asked for in one Fetch, 1024 or more",
    "source.max_batch_bytes": "bytes that a Fetch may grow to for one large record batch; no less than fetch_max_bytes",
    "source.max_record_bytes": "bytes of the largest record that is taken",
    "source.timeout_s": "seconds that one request to a broker may take, up to 86400 (a day)",
    "source.expiry_warning_s": "seconds, up to ten years: what may expire within them is told and read first; 0 for none",
    "source.assume_compacted": "regular expressions for topics whose missing offsets are compaction's, as a list",
    "table": "keys of its own, `path` or `name` first of all",
    "table.name": "in place of path: catalog.schema.table or schema.table, as Spark's catalogs name a Delta table; null for none",
    "table.path": "a folder, seen from the conf file's, or a store's URL: s3://, abfss:// or hdfs://; null beside table.name",
    "table.store": "how the path's store is reached; without it each engine goes by its own chain",
    "table.store.endpoint": "the URL of a store that is not its vendor's own; null for the vendor's",
    "table.store.region": "of S3, as eu-central-1; null for what the environment says",
    "table.store.allow_http": "true: the endpoint may be http://; false: it may not",
    "table.store.access_key": "of S3, as ${env:NAME} or ${file:/path}; null for each engine's own chain",
    "table.store.secret_key": "of S3, as ${env:NAME} or ${file:/path}; null for each engine's own chain",
    "table.store.account": "Azure's storage account; null for the one that table.path names",
    "table.store.account_key": "of Azure's account, as ${env:NAME} or ${file:/path}; null for each engine's own chain",
    "table.writer": "spark, arrow (tasks write the files themselves) or auto (arrow where it can)",
    "table.codec": "of the data files: uncompressed, snappy, lz4 or zstd; null for the writer's own",
    "table.target_file_bytes": "how many bytes a file has that tasks write or small ones become, 1048576 (1 MiB) or more",
    "table.row_group_bytes": "how many bytes of rows in memory a row group has in files that tasks write, 65536 to 1073741824 (1 GiB)",
    "table.write_buffer_bytes": "how many bytes of rows a task holds back of all files that it writes, 65536 to 4294967296 (4 GiB)",
    "table.auto_compact_min_files": "with so many small files in the table a run puts them together at its end; 0 for never",
    "table.partition_by": "columns, as a list: [event_date]; event_date is the UTC date of the record",
    "table.on_rows_removed": "fail: stop where somebody removed rows; record: a DELETE passes, and is noted",
    "table.losses_path": "the Delta table of what was let go; null for <path>_losses",
    "limits": "keys of its own, each with a default",
    "limits.max_records_per_plan": "how many offsets one plan takes on, 1 or more; null for all",
    "limits.max_bytes_per_plan": "how many bytes one plan takes on, 1 or more; null for all",
    "limits.target_task_bytes": "how many bytes one Spark task should read, 1 or more",
    "limits.local_below_bytes": "plans below so many bytes are read without Spark, by table.writer arrow or auto; 0 for none",
    "ownership": "keys of its own, each with a default",
    "ownership.mode": "claim: own what is read meanwhile; observe: only look at owners; join: be one of the group's members",
    "ownership.on_owned": "what becomes of partitions that somebody else owns: fail, wait or skip",
    "ownership.on_active_members": "what becomes of a run while consumers of the group are alive: fail or unowned",
    "ownership.lock_timeout_s": "seconds, 0 to 86400 (a day): how long to wait for another driver of this pipeline",
    "ownership.membership": "zookeeper: old consumers that are registered there; coordinator: Kafka's own group; null: where brokers are",
    "ownership.hand_over": "at_plan: the group's offsets move with the stored plan; after_append: behind it, where all members are ours",
    "ownership.strategy": "range, roundrobin, roundrobin-0.10 or roundrobin-1.0, as the group's consumers are set; of Kafka's group one "
    "or a list of range, roundrobin, sticky and cooperative-sticky",
    "ownership.protocol": "by which a coordinator is spoken to: classic (0.9 to 4.x) or consumer (4.0 and later)",
    "ownership.threads": "how many threads of the group a run counts for, 1 to 10000",
    "ownership.member_id": "a name among the group's members, of one run at a time; null for that of its process",
    "ownership.join_timeout_s": "seconds until the group must have settled, up to 86400 (a day)",
    "ownership.backoff_s": "seconds between tries to own a share, up to 86400 (a day)",
    "ownership.session_timeout_s": "seconds, 1 to 3600: a coordinator takes a member that is silent for so long for gone",
    "ownership.rebalance_timeout_s": "seconds, 1 to 3600, that a coordinator's group waits for a run to join again",
    "ownership.stay": "run: a member until the run ends; share: until its share is handed over",
    "offsets": "keys of its own, each with a default",
    "offsets.storage": "where the group's offsets are: zookeeper, kafka or dual (both)",
    "transform": "package.module:function, a function from DataFrame to DataFrame; null for none",
    "arrow_transform": "package.module:function, a function from pyarrow.RecordBatch to RecordBatch; null for none, as beside transform",
    "report": "keys of its own, each with a default",
    "report.path": "the folder of the runs' reports, seen from the conf file's",
    "report.keep": "how many reports stay, 1 to 1000000",
    "metrics_path": "a file that ends in .prom, or a folder for GROUP+PIPELINE.prom, which Prometheus' node exporter reads; null for none",
    "lineage_namespace": "a name for the namespace of the pipeline's job in OpenLineage, or null",
    "metrics_per": "topic: the metrics of lag are of each topic; partition: of each partition",
    "spark": 'plain Spark settings, each a text: {spark.master: "local[4]"}',
}
"""The meaning of each key, in half a line."""
_SAID = {
    "missing": "a key is missing",
    "string_pattern_mismatch": "has a form that this key does not take",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must hold keys of its own",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
"""By pydantic's name of a mistake; its own words speak of Python and of patterns."""
_PASSWORD = re.compile(r"(?i)(?<=\w:)(?<!abfs:|bfss:|wasb:|asbs:)//[^/\s]*@|//[^/\s]*:[^/\s]*@")
"""Credentials in a URL: all before its @, except Azure's container."""


def conf_mistake(
    found: Sequence[Mapping[str, Any]],
    path: str | None,
    reference_at: Callable[[Sequence[int | str]], str | None],
) -> SettingsError:
    """Return all mistakes as one error, whose `key` is the first. `found` are pydantic's (`type`,
    `loc`, `msg`, `input`); `reference_at` returns the text of a reference to a secret at a key,
    whose value is not shown then.
    """
    missing = {_key_of_mistake(one) for one in found if one["type"] == "missing"}
    told, meant = dict[str, str](), set[str]()
    for one in found:
        key, near = _key_of_mistake(one), _near(one)
        meant |= {near} & missing
        told.setdefault(key, _sentence(one, near, reference_at(one["loc"])))
    for key in meant:  # it is there, under another name
        told.pop(key)
    keys = list(told)
    if len(keys) == 1:
        [(key, sentence)] = told.items()
        return SettingsError(sentence, path=path, key=key or None, action=_check(key, sentence))
    lines = [
        f"{key}: {sentence}" + (f"; it takes {meaning}" if (meaning := _meaning(key)) else "")
        for key, sentence in told.items()
    ]
    message = "\n".join([f"{len(keys)} keys of the conf are wrong:", *lines])
    return SettingsError(
        message,
        path=path,
        key=keys[0] or None,
        action="each of these keys, its spelling and its indentation",
    )


def _sentence(one: Mapping[str, Any], near: str, reference: str | None) -> str:
    if one["type"] == "extra_forbidden":
        return f"unknown key; did you mean `{near}`?" if near else "unknown key"
    if reference and not is_secret(
        _key_of_mistake(one)
    ):  # it may be a secret: neither the value nor a message that quotes it
        return f"{reference} refers to something that this key does not take"
    said = _SAID.get(one["type"]) or re.sub(
        r"^Input should be ", "must be ", one["msg"].removeprefix("Value error, ")
    )
    if one["type"] in ("enum", "literal_error"):  # the choices, as they are written in the file
        said = re.sub(r"<\w+\.\w+: (.*?)>", r"\1", said.replace("'", ""))
    return said + _given(one)


def _given(one: Mapping[str, Any]) -> str:
    """Return the value, if it is no section and no possible secret."""
    given = one["input"]
    if (
        one["type"] == "missing"
        or is_secret(_key_of_mistake(one))
        or not isinstance(given, (str, int, float, bool, type(None)))
    ):
        return ""
    if (
        isinstance(given, int) and given.bit_length() > 64
    ):  # Python refuses to write out the largest ones
        given = "a number of many digits"
    if isinstance(given, str):  # who writes a password into an address is told of the address
        given = _PASSWORD.sub("//***@", given)
    return f" (it is {given!r})"


def _check(key: str, sentence: str) -> str:
    if sentence.startswith("unknown key"):
        section = key.rpartition(".")[0]
        there = [name.rpartition(".")[2] for name in MEANINGS if name.rpartition(".")[0] == section]
        return "its spelling and indentation" + (
            f"; {section or 'the file'} takes {', '.join(there)}" if there else ""
        )
    meaning = _meaning(key)
    return f"{key} takes {meaning}" if meaning else "the key's spelling and its value"


def _meaning(key: str) -> str:
    """Return the meaning of a key, or of its list or mapping."""
    while key and key not in MEANINGS:
        key = key.rpartition(".")[0]
    return MEANINGS.get(key, "")


def _near(one: Mapping[str, Any]) -> str:
    """The key that was meant perhaps: one of the same section with a like name, or that very name
    in another section.
    """
    if one["type"] != "extra_forbidden":
        return ""
    section, _, name = _key_of_mistake(one).rpartition(".")
    beside = {
        known.rpartition(".")[2]: known for known in MEANINGS if known.rpartition(".")[0] == section
    }
    like = difflib.get_close_matches(name, beside, n=1)
    elsewhere = [known for known in MEANINGS if known.rpartition(".")[2] == name]
    return beside[like[0]] if like else elsewhere[0] if elsewhere else ""


def _key_of_mistake(one: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in one["loc"])


SCHEMA_FILE = "pipeline.schema.json"
"""Name of the schema file beside a conf that `etl init` writes."""
_TEXT = {"type": "string", "minLength": 1}
_REFERENCE = {"type": "string", "pattern": REFERENCE_PATTERN}
"""Any value may come from a variable or a file, also one that is no text."""
_STRATEGY = {"enum": [one.value for one in GroupStrategy]}
_OWN_FORMS: Mapping[str, list[dict[str, Any]]] = {
    "source.start": [
        {"enum": [one.value for one in StartAt]},
        {
            "type": "object",
            "properties": {"timestamp": {"description": MEANINGS["source.start.timestamp"]}},
            "required": ["timestamp"],
            "additionalProperties": False,
        },
    ],
    "ownership.strategy": [_STRATEGY, {"type": "array", "minItems": 1, "items": _STRATEGY}],
    "spark": [
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    ],
}
"""Keys with our own validators, whose forms pydantic does not know."""
_EITHER: Mapping[str, tuple[str, ...]] = {"table": ("path", "name")}
"""Sections that need one of several keys."""


def conf_schema(*, for_defaults: bool = False) -> dict[str, Any]:
    """The schema of a conf; with `for_defaults` that of a file of defaults, which needs no key, and
    has none of one pipeline's.
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
            "title": "what several pipelines of offset-range-etl have in common",
            **keys,
            "properties": properties,
        }
    by_defaults = {"required": ["defaults"], "properties": {"defaults": _TEXT}}
    needed = _needed(whole, whole["$defs"])
    return {
        **head,
        "title": "a pipeline of offset-range-etl",
        **keys,
        "required": ["pipeline"],
        "anyOf": [needed, by_defaults],
    }


def _section(node: Mapping[str, Any], known: Mapping[str, Any], above: str) -> dict[str, Any]:
    properties = {
        name: _key({**known[_name(key)], **key} if "$ref" in key else key, known, above + name)
        for name, key in node["properties"].items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _key(node: Mapping[str, Any], known: Mapping[str, Any], key: str) -> dict[str, Any]:
    told: dict[str, Any] = {"description": MEANINGS[key]}
    if "properties" in node:
        return {**told, **_section(node, known, f"{key}.")}
    if node.get("default") is not None:
        told["default"] = node["default"]
    return {**told, **_one_of(_OWN_FORMS.get(key) or _forms(node))}


def _forms(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each form that a key accepts: a list may be one text, a value a reference."""
    forms = [
        {
            name: fact
            for name, fact in form.items()
            if name not in ("title", "default", "description", "$ref")
        }
        for form in node.get("anyOf", [node])
    ]
    if any(form.get("type") == "array" for form in forms):
        return [_TEXT, *forms]
    return (
        forms
        if _REFERENCE in forms or any(_is_any_text(form) for form in forms)
        else [*forms, _REFERENCE]
    )


def _is_any_text(form: Mapping[str, Any]) -> bool:
    return form.get("type") == "string" and not {"enum", "const", "pattern"} & form.keys()


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _needed(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that must be there, section by section."""
    sections = {
        name: known[_name(key)] for name, key in node["properties"].items() if "$ref" in key
    }
    below = {
        name: _needed(section, known)
        for name, section in sections.items()
        if section.get("required")
    }
    below |= {
        name: {"anyOf": [{"required": [key]} for key in keys]}
        for name, keys in _EITHER.items()
        if name in sections
    }
    return {"required": node["required"], **({"properties": below} if below else {})}


def _name(key: Mapping[str, Any]) -> str:
    return str(key["$ref"]).rpartition("/")[2]
