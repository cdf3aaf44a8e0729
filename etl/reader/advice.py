"""What a person can do about an error of a task: a pipeline has settings and commands, the data
source alone has its options. Pure.

Whoever reads a log says what is wrong, where, and what to look at on the brokers. What can be
changed on this side is added here, once, where the error leaves the task.
"""

from __future__ import annotations

from etl.decide.partition_identity import accept_command
from etl.errors import (
    DataLoss,
    EtlError,
    LogTruncated,
    MessageTooLarge,
    RanOutBeforeUntil,
    RecordTooLarge,
    TopicMadeAgain,
)
from etl.reader.option_names import SECURITY, ZOOKEEPER_SECURITY


def for_a_pipeline(error: EtlError) -> EtlError:
    """The same error with the settings and commands that decide what becomes of it."""
    if isinstance(error, DataLoss):
        return _with(error, "and source.on_data_loss")
    if isinstance(error, MessageTooLarge):
        return _with(error, "raise source.fetch_limit_bytes")
    if isinstance(error, RecordTooLarge):
        return _with(error, "or `etl plans supersede --help`")
    if isinstance(error, TopicMadeAgain):
        return _with(
            error,
            f"the next run says so too, then go on with the new one: {accept_command([error.where['topic']])}",
        )
    return error


def for_options(error: EtlError) -> EtlError:
    """The same error with the options of the data source that decide what becomes of it."""
    if _is_of_the_way_in(error):
        return in_options(error)
    if isinstance(error, LogTruncated):
        check = "whether an unclean leader was elected, or a broker lost its disk; a DataFrame that is made anew goes by the log of now"
        return type(error)(error.what, check=check, **error.where)
    if isinstance(error, DataLoss | RanOutBeforeUntil) and "failOnDataLoss" not in error.check:
        return _with(error, "failOnDataLoss: false reads what the log holds")
    if isinstance(error, MessageTooLarge):
        return _with(error, "raise the option fetch_limit_bytes")
    if isinstance(error, RecordTooLarge):
        return _with(error, "startingOffsets and endingOffsets, or ranges, choose what is read")
    if isinstance(error, TopicMadeAgain):
        return _with(error, "a DataFrame that is made anew reads the new one")
    return error


_SECTIONS = {
    "source.security.sasl": "sasl_*",
    "source.security.tls": "tls_*",
    "source.security": "security_protocol",
    "zookeeper.auth": "zookeeper_auth_*",
    "zookeeper.connect": "zookeeper",
}


_KEYS = (
    "source.security",
    "source.listener",
    "zookeeper.tls",
    "zookeeper.auth",
    "zookeeper.connect",
)


def in_options(error: EtlError) -> EtlError:
    """The same error, where it names keys of a conf's encryption and login: with the options that
    are the same.
    """
    if not _is_of_the_way_in(error):
        return error
    words = {
        **{f"source.security.{'.'.join(key)}": option for option, key in SECURITY.items()},
        "source.listener": "listener",
        **{f"zookeeper.{'.'.join(key)}": option for option, key in ZOOKEEPER_SECURITY.items()},
    }

    def said(text: str) -> str:
        for key in sorted(words, key=len, reverse=True):
            text = text.replace(key, words[key])
        for key, options in _SECTIONS.items():
            text = text.replace(key, options)
        return text

    place = {
        "option" if name == "key" else name: said(value) if isinstance(value, str) else value
        for name, value in error.where.items()
    }
    return type(error)(said(error.what), check=said(error.check), **place)


def _is_of_the_way_in(error: EtlError) -> bool:
    return any(key in f"{error.where.get('key', '')} {error.check}" for key in _KEYS)


def _with(error: EtlError, advice: str) -> EtlError:
    return type(error)(
        error.what, check=f"{error.check}; {advice}" if error.check else advice, **error.where
    )
