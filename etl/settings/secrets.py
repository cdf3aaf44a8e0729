"""How does a section of a conf take secrets by reference, and reject unknown keys?

Lives here: keys that accept only references to secrets, and the base class of all sections:
immutable, no unknown keys, strict booleans, bounded numbers.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from etl.errors import SettingsError
from etl.model.security import LocalFile, SecretRef, parse_reference

SECRET_MAX_BYTES = 64 * 2**10
"""A file that a value refers to holds one value."""


def read_text(path: str | Path, most: int) -> str:
    """Read a text file up to that size, without reading devices to their end. Raises OSError, and
    ValueError for a larger file and for invalid UTF-8.
    """
    with open(path, "rb") as file:
        return _text_of(file, most)


def read_value(path: str | Path) -> str:
    """Read the one value of a file: its text without a byte order mark and without blanks around.

    Raises OSError, and ValueError as `read_text` and for a file that is not a regular one.
    """
    with open_regular(path) as file:
        return _text_of(file, SECRET_MAX_BYTES).removeprefix("\ufeff").strip()


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file to read. Raises OSError, and ValueError for a pipe or a device, which
    could be waited for without end.
    """
    file = open(path, "rb", opener=_open_without_waiting)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is not a regular file")
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _text_of(file: BinaryIO, most: int) -> str:
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
    return content.decode("utf-8")


REFERENCE_PATTERN = r"\$\{(env|file):[^}]+\}"
SECRET_KEYS = frozenset(
    {
        "source.security.tls.key_password",
        "source.security.sasl.username",
        "source.security.sasl.password",
        "source.security.sasl.token",
        "zookeeper.tls.key_password",
        "zookeeper.auth.username",
        "zookeeper.auth.password",
        "table.store.access_key",
        "table.store.secret_key",
        "table.store.account_key",
    }
)
"""Keys of secrets: values are never shown, references are not resolved while the conf is read."""
FILE_KEYS = frozenset(
    f"{section}.{name}"
    for section in ("source.security.tls", "zookeeper.tls")
    for name in ("ca_file", "cert_file", "key_file")
)
"""Files that each connecting process opens on its own machine."""
PRIVATE_KEYS = ("source.security.tls.key_file", "zookeeper.tls.key_file")
"""Those of these files that contain a secret."""


def is_secret(key: str) -> bool:
    """True if the value of a key may be or contain a secret."""
    return any(secret == key or secret.startswith(f"{key}.") for secret in SECRET_KEYS)


def _reference(value: Any) -> SecretRef:
    if isinstance(value, SecretRef):
        return value
    reference = None
    if isinstance(value, str):
        reference = parse_reference(value)
    if reference is None:
        raise ValueError(
            "must be a reference, ${env:NAME} or ${file:/path}: a conf contains no secrets"
        )
    return reference


def _text_or_reference(value: Any) -> str | SecretRef:
    if isinstance(value, SecretRef):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string or a reference, ${env:NAME} or ${file:/path}")
    return parse_reference(value) or value


def _file(value: Any) -> LocalFile:
    if isinstance(value, LocalFile):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be a file's path")
    return LocalFile(value)


FileOfEach = Annotated[
    LocalFile,
    PlainValidator(_file),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""A key that takes the path of a file on each connecting machine."""
Secret = Annotated[
    SecretRef,
    PlainValidator(_reference),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": REFERENCE_PATTERN}),
]
"""A key that takes a reference only."""
TextOrSecret = Annotated[
    str | SecretRef,
    PlainValidator(_text_or_reference),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""A key that takes a string, or a reference that is resolved on connecting."""


def resolve_secret(secret: SecretRef, key: str) -> str:
    """Resolve a secret for immediate use.

    Raises SettingsError, with the key and the machine, if it is missing or empty.
    """
    read: Callable[[str], str]
    if secret.kind == "env":
        source, name, read = "environment variable", secret.name, _variable
    else:
        source, name, read = "file", place_of_file(secret.file), read_value
    try:
        text = read(name)
    except KeyError:
        problem = "which is not set"
    except FileNotFoundError:
        problem = "which does not exist"
    except (OSError, ValueError) as error:
        problem = f"which cannot be read: {_reason(error)}"
    else:
        if text:
            return text
        problem = "which is empty"
    raise SettingsError(
        f"{key} refers to the {source} {name}, {problem}",
        key=key,
        host=os.uname().nodename,
        action=f"Check this {source} on every machine that connects: the driver's "
        "and each executor's",
    )


def login_text(value: str | SecretRef | None, key: str) -> str:
    """Return a string of a login, written or referenced.

    Raises SettingsError as `resolve_secret`, for an empty string and for one with a NUL.
    """
    if isinstance(value, SecretRef):
        text = resolve_secret(value, key)
        subject = f"{key}, from {value},"
    else:
        text = value or ""
        subject = key
    if not text:
        raise SettingsError(f"{subject} is empty", key=key, action="Set it to a value")
    if "\0" in text:
        raise SettingsError(f"{subject} contains a NUL", key=key, action="Remove the NUL")
    return text


def _reason(error: Exception) -> str:
    """Describe the failure without the content of the file."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return str(getattr(error, "strerror", None) or error)


def _variable(name: str) -> str:
    value = os.environ[name]
    value.encode()  # raises for surrogates here, before a message could print the value
    return value


_shipped: list[str] = []
"""The directory of `spark-submit --files` in the process of a Spark task; else empty."""


def use_shipped_files(folder: str) -> None:
    """Search files that are missing beside the conf in this directory, from now on.

    For processes of Spark tasks only: the driver has the conf, and another user may have put a file
    of that name into its working directory.
    """
    _shipped[:] = [folder]


def place_of_file(file: LocalFile) -> str:
    """Return the file's path on this machine; of a Spark task, that of the copy that was shipped
    with it, if there is no other.
    """
    place = str(file)
    if file.is_relative_to_conf and not os.path.exists(place):
        for folder in _shipped:
            copy = os.path.join(folder, file.name)
            if os.path.exists(copy):
                return copy
    return place


DAY_S = 86_400
TEN_YEARS_S = 10 * 366 * DAY_S
INT64 = 2**63 - 1
"""Largest offset and size (Kafka protocol, "Primitive Types")."""
NAME = r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""Names of znodes and groups: not only dots, which ZooKeeper rejects."""
PIPELINE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names of pipelines and backfills. None can be mistaken for an option."""
SIZE_PATTERN = r"([0-9]{1,19})\s*(B|KiB|MiB|GiB|TiB)"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _byte_size(value: Any) -> Any:
    """Convert a text with a unit to bytes; a number in quotes has none, and is rejected."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(SIZE_PATTERN, value.strip(), re.ASCII)
    if found is None:
        raise ValueError("must be a number of bytes, or a string with a unit such as 16 MiB")
    return int(found[1]) * UNITS[found[2]]


ByteSize = Annotated[int, BeforeValidator(_byte_size)]
"""A key that takes a number of bytes, or a string with a unit: B, KiB, MiB, GiB or TiB."""
PositiveByteSize = Annotated[int, Field(ge=1, le=INT64), BeforeValidator(_byte_size)]


class Section(BaseModel):
    """Base class of all sections of a conf."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _boolean_where_declared(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject true and false for other keys: YAML reads `yes`, `no`, `on` and `off` as booleans,
        and pydantic converts true to 1 and 1 to true.
        """
        declared = cls.model_fields[str(info.field_name)].annotation
        if declared in (bool, bool | None):
            if not isinstance(value, bool) and (value is not None or declared is bool):
                if declared is bool:
                    raise ValueError("must be true or false")
                raise ValueError("must be true, false or null")
        elif isinstance(value, bool):
            raise ValueError(
                "must not be true or false. YAML reads yes, no, on and off as booleans: "
                "quote the value"
            )
        return value

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy as pydantic does, without cached properties, which are of the values before.

        Raises KeyError for an unknown field, which pydantic ignores.
        """
        unknown = (update or {}).keys() - type(self).model_fields.keys()
        if unknown:
            raise KeyError(f"{type(self).__name__} has no field {sorted(unknown)[0]}")
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied


def one_or_several(value: Any) -> Any:
    """Return a list of one for a single string: `topics: clicks`."""
    return (value,) if isinstance(value, str) and value else value
