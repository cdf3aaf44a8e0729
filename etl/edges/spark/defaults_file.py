"""What `spark-defaults.conf` says: a setting that we make takes the place of the whole of what that
file says of the same name.

Spark reads it where a JVM is started from Python, too, for every name that the session's builder
does not give. So what we give only to start faster, or to bring Delta's jars, stands beside what is
written there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
_ENDS = re.compile(r"\r\n|\r|\n")
_JOINED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*")
_LINE = re.compile(r"[ \t\f]*([^\s=:]+)(?:[ \t\f]*[=:]|[ \t\f])[ \t\f]*(.*)")


def settings_of_file() -> dict[str, str]:
    """Its settings, by Java's rules for such files but for escapes in them; none where there is no
    such file.
    """
    file = _folder() / "spark-defaults.conf"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    written = [
        line for line in _ENDS.split(text) if not line.lstrip(" \t\f").startswith(("#", "!"))
    ]
    lines = _JOINED.sub(r"\1", "\n".join(written)).split("\n")
    return {found[1]: found[2].strip() for line in lines if (found := _LINE.match(line))}


def beside_file(ours: Mapping[str, str]) -> dict[str, str]:
    """Our settings without the JVM's options where the file has some, and with its class path
    behind ours.
    """
    theirs = settings_of_file()
    kept = {key: value for key, value in ours.items() if key != JAVA_OPTIONS or key not in theirs}
    if CLASS_PATH in kept and theirs.get(CLASS_PATH):
        kept[CLASS_PATH] += os.pathsep + theirs[CLASS_PATH]
    return kept


def _folder() -> Path:
    """Where Spark's own scripts look: the folder that is named, or that of the Spark that is."""
    named, home, installed = (
        os.environ.get("SPARK_CONF_DIR"),
        os.environ.get("SPARK_HOME"),
        find_spec("pyspark"),
    )
    if not home and installed and installed.origin:
        home = str(Path(installed.origin).parent)
    return Path(named) if named else Path(home or "", "conf")
