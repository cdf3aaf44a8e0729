"""The error for each failure of a store, of Spark and of delta-rs, without its secrets."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from etl.errors import NotOurTable, PermissionDenied, SettingsError, TableUnreachable
from etl.io.delta.stores import (
    constraint_error,
    is_conflict,
    is_obstacle,
    public_cause,
    translate,
    unreachable,
    unreadable,
    violated_constraint,
)
from tests.builders import plain_plan

S3, AZURE = "s3://lake/t", "abfss://lake@acme.dfs.core.windows.net/t"
_XML = (
    '<?xml version="1.0"?>\n<Error><Code>{}</Code><Message>denied</Message><StringToSign>AWS4-HMAC '
    "key-of-mine</StringToSign></Error>"
)
_ASKED = (
    "Kernel error -> Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET "
    "http://h:1/lake?prefix=t in 2ms - "
    "Server returned non-2xx status code\n  {}\n"
)
REFUSED = [
    _ASKED.format("404 Not Found") + _XML.format("XAdminUserNotFound"),
    _ASKED.format("403 Forbidden") + _XML.format("SignatureDoesNotMatch"),
    _ASKED.format("403 Forbidden") + _XML.format("InvalidAccessKeyId"),
    _ASKED.format("403 Forbidden") + _XML.format("AuthorizationFailure"),
    "Kernel error -> The operation lacked the necessary privileges to complete for path "
    "t/_delta_log/_last_checkpoint",
    "The operation lacked valid authentication credentials\n - Server returned non-2xx "
    "status code 401 Unauthorized",
    "Error performing PUT http://169.254.169.254/latest/api/token in 1ms - Server returned "
    "non-2xx status code\n 403 Forbidden",
    "java.nio.file.AccessDeniedException: s3a://lake/t: getFileStatus: "
    "software.amazon.awssdk.services.s3.model.S3Exception: null "
    "(Service: S3, Status Code: 403, Request ID: x)",
    "org.apache.hadoop.security.AccessControlException: Permission denied: user=etl, access=WRITE",
]
WRONG = [
    (_ASKED.format("404 Not Found") + _XML.format("NoSuchBucket"), "table.path"),
    (_ASKED.format("404 Not Found") + _XML.format("ContainerNotFound"), "table.path"),
    (
        _ASKED.format("400 Bad Request") + _XML.format("AuthorizationHeaderMalformed"),
        "table.store.region",
    ),
    ("HTTP error\n builder error\n URL scheme is not allowed", "table.store.endpoint"),
    (
        "client error (Connect)\n received corrupt message of type InvalidContentType",
        "table.store.endpoint",
    ),
    (
        "Generic MicrosoftAzure error\n Invalid Access Key\n Invalid symbol 33, offset 6.",
        "table.store.account_key",
    ),
]
PASSING = [
    (
        "Error performing GET http://h:1 after 10 retries\n tcp connect error\n Connection "
        "refused (os error 111)",
        "Connection refused",
    ),
    (
        "dns error\n failed to lookup address information\n Name or service not known",
        "Name or service not known",
    ),
    (_ASKED.format("503 Slow Down") + _XML.format("SlowDown"), "503"),
    ("an unknown failure", "cannot be read"),
    ("connection reset", "Connection reset"),
    (
        "Generic HdfsObjectStore error: RPC error: "
        "org.apache.hadoop.hdfs.server.namenode.SafeModeException Cannot create file. Name "
        "node is in safe mode.",
        "safe mode",
    ),
]


@pytest.mark.parametrize("text", REFUSED)
def test_whom_a_store_refuses_need_not_try_again(text: str) -> None:
    reported = unreachable(OSError(text), S3, "read")
    assert isinstance(reported, PermissionDenied) and reported.exit_code == 2
    assert "key-of-mine" not in str(reported)
    by_spark = Exception(f"An error occurred while calling o1.save.\nCaused by: {text}")
    by_a_writer = by_spark if text.startswith(("java", "org")) else OSError(text)
    assert isinstance(translate(by_a_writer, S3), PermissionDenied)


@pytest.mark.parametrize(("text", "key"), WRONG)
def test_a_wrong_setting_is_reported_with_its_key(text: str, key: str) -> None:
    reported = unreachable(OSError(text), AZURE, "written")
    assert type(reported) is SettingsError
    assert reported.where["key"] == key
    assert "key-of-mine" not in str(reported)


@pytest.mark.parametrize(("text", "words_said"), PASSING)
def test_what_may_pass_is_worth_another_run(text: str, words_said: str) -> None:
    reported = unreachable(OSError(text), S3, "read")
    assert type(reported) is TableUnreachable
    assert reported.exit_code == 7
    assert words_said in reported.message
    assert "key-of-mine" not in str(reported)


def test_on_a_local_path_a_permission_may_be_granted_until_the_next_run() -> None:
    assert isinstance(unreachable(OSError("Permission denied"), "/t", "read"), TableUnreachable)


def test_no_traceback_has_a_stores_words() -> None:
    try:
        try:
            raise OSError(_XML.format("SignatureDoesNotMatch"))
        except OSError as error:
            raise unreachable(error, S3, "read") from public_cause(error, S3)
    except PermissionDenied as denied:
        assert "key-of-mine" not in "".join(traceback.format_exception(denied))


AWAITED = (
    "An error occurred while calling o125.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \nCaused by: "
)
FAILED_READ = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.{}] Encountered error while reading"
)
TRUNCATED = (
    "org.apache.spark.sql.delta.DeltaFileNotFoundException: [DELTA_TRUNCATED_TRANSACTION_LOG]"
)


@pytest.mark.parametrize(
    ("text", "message", "file", "exit_code"),
    [
        (
            f"{FAILED_READ.format('FILE_NOT_EXIST')} file "
            "file:/data/a%20table/topic=clicks/part-0.snappy.parquet. File does not exist. It is",
            "does not exist",
            "part-0.snappy.parquet",
            5,
        ),
        (
            f"{FAILED_READ.format('NO_HINT')} file s3a://b/t/part-0.parquet.  SQLSTATE: KD001",
            "cannot be read",
            "part-0.parquet",
            7,
        ),
        (
            f"{TRUNCATED} file:/t/_delta_log/{0:020}.json: Unable to reconstruct state at version 1",
            "does not exist",
            f"{0:020}.json",
            5,
        ),
    ],
    ids=["lost", "damaged", "lost from the log"],
)
def test_a_file_that_cannot_be_read_is_named_and_a_retry_is_advised_only_where_it_may_help(
    text: str, message: str, file: str, exit_code: int
) -> None:
    found = unreadable(AWAITED + text, "/data/a table")
    assert found is not None and message in found.message
    assert found.where == {"file": file, "path": "/data/a table"}
    assert (found.exit_code, found.retriable) == (exit_code, exit_code == 7)
    assert ("repair()" in found.action) == (exit_code == 5 and file.endswith("parquet"))


@pytest.mark.parametrize(
    "text",
    ["", "java.lang.OutOfMemoryError", "[ARITHMETIC_OVERFLOW] overflow. Use 'try_add' to tolerate"],
)
def test_any_other_failure_of_spark_is_not_the_tables(text: str) -> None:
    assert unreadable(AWAITED + text, "/data") is None


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "
        '"s3"\n\tat org.apache',
        "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class "
        "org.apache.hadoop.fs.s3a.S3AFileSystem not found",
    ],
)
def test_a_store_that_spark_alone_does_not_know_is_a_wrong_setting(text: str) -> None:
    reported = translate(Exception(text), "s3://bucket/clicks")
    assert isinstance(reported, SettingsError) and "spark.jars.packages" in reported.action


@pytest.mark.parametrize(
    ("name", "reason"), [("r\0d", "contains a NUL"), ("rd" * 150, "is too long")]
)
def test_an_invalid_folder_name_is_reported_with_its_column_as_a_permanent_error(
    name: str, reason: str
) -> None:
    text = (
        "An error occurred while calling o89.save.\n: org.apache.spark.SparkException: "
        "[TASK_WRITE_FAILED] Task failed\n\tat org\nCaused by: java.io.IOException: Mkdirs failed "
        "to create file:/t/partition=0/colour={} (exists=false, cwd=file:/home)"
    )
    reported = translate(Exception(text.format(name)), "/t")
    assert isinstance(reported, SettingsError) and not reported.retriable
    what = f"A text in the partition column colour {reason}: no directory can have such a name"
    assert (reported.message, reported.where["key"]) == (what, "table.partition_by")
    assert "transform" in reported.action and "supersede" in reported.action
    assert isinstance(translate(Exception(text.format("rd")), "/t"), TableUnreachable)


def test_a_writers_own_error_text_is_reported_once() -> None:
    result = unreachable(
        OSError("\x1b[31m↳\x1b[0m No space left on device (os error 28)"), "/t", "written"
    )
    assert translate(result, "/t") is result
    assert result.message == "The table cannot be written: No space left on device (os error 28)"


def test_a_table_folder_that_disappears_before_the_commit_is_no_bug(tmp_path: Path) -> None:
    """The next run reads the state of the table again."""
    path = str(tmp_path / "t")
    write_deltalake(path, pyarrow.table({"n": [1]}))
    table = DeltaTable(path)
    shutil.rmtree(path)
    with pytest.raises(DeltaError) as raised:
        table.create_write_transaction([], "append", table.schema())
    reported = translate(raised.value, path)
    assert isinstance(reported, TableUnreachable)
    assert reported.message == "The table was removed during this append"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("java.io.IOException: No space left on device\n\tat java.base/...", True),
        ("java.nio.file.AccessDeniedException: /warehouse", True),
        ("java.nio.file.FileSystemException: /w/part-0: Operation not permitted", True),
        ("[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/t/_delta_log", True),
        ("java.lang.NullPointerException", False),
    ],
)
def test_a_stack_trace_that_speaks_of_the_disk_is_no_bug(text: str, is_one: bool) -> None:
    assert is_obstacle(text) == is_one


def test_of_a_java_stack_trace_the_line_with_the_cause_is_reported() -> None:
    text = (
        "An error occurred while calling o90.save.\n: org.apache.spark.SparkException: Job "
        "aborted\n\tat org.apache.spark.X(X.scala:1)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base/..."
    )
    reported = unreachable(OSError(text), "/t", "written")
    cause = "java.io.IOException: No space left on device"
    assert reported.message == f"The table cannot be written: {cause}"


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (
            "CHECK constraint few (offset < 3) violated by row with values:\n - offset : 3",
            "(offset < 3)",
        ),
        ("NOT NULL constraint violated for column: key.\n", "key is not null"),
        ("CHECK constraints are a table feature", None),
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "ValueError: CHECK constraint few (offset < 3) violated by row with values:\n",
            None,
        ),
    ],
)
def test_a_violated_constraint_is_recognised_and_the_record_can_be_left_out(
    text: str, condition: str | None
) -> None:
    reported = f"Job aborted\nCaused by: [DELTA_X] {text}"
    violated = violated_constraint(reported)
    assert (violated and violated.condition) == condition
    if violated:
        place = {"topic": "clicks", "partition": 1, "offset": 7}
        of_stored_plan = constraint_error(violated, "/t", place, plain_plan(12))
        supersede = "`etl plans supersede CONF 12 --skip clicks:1:7-8 --reason ...`"
        assert supersede in of_stored_plan.action
        of_other_rows = translate(RuntimeError(reported), "/t")
        assert isinstance(of_other_rows, NotOurTable)
        assert of_other_rows.message == of_stored_plan.message
        assert "supersede" not in of_other_rows.action


@pytest.mark.parametrize(
    "text",
    [
        "io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED] The metadata "
        "of the table has been changed",
        "[DELTA_CONCURRENT_DELETE_READ] ConcurrentDeleteReadException: ...",
        "io.delta.exceptions.ProtocolChangedException: ...",
    ],
)
def test_a_stack_trace_about_a_concurrent_commit_is_a_conflict(text: str) -> None:
    assert is_conflict(text)
    assert not is_conflict("java.lang.NullPointerException at io.delta.storage")
