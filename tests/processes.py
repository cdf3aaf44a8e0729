"""The processes of this machine, by Linux' /proc."""

from __future__ import annotations

from pathlib import Path


def of_session(leader: int) -> list[int]:
    """The living processes in the session that `leader` began."""
    return [pid for pid in _all() if _stat(pid)[3:4] == [str(leader)] and is_running(pid)]


def that_mention(text: str) -> list[int]:
    """The living processes with `text` in their command line."""
    return [pid for pid in _all() if text in command_line(pid) and is_running(pid)]


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def is_paused(pid: int) -> bool:
    return _stat(pid)[:1] == ["T"]


def command(pid: int) -> list[str]:
    """The words that a process was started with; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def command_line(pid: int) -> str:
    """The same as one text."""
    return " ".join(command(pid))


def working_folder(pid: int) -> str:
    """The working directory of a process; nothing if it has ended, or belongs to another user."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _all() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str]:
    """State, parent, process group, session, ... of a process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
