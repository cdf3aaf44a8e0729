"""What stores answer, as they were heard to, is an exit code and a key, and their words are
repeated nowhere. The error if Spark cannot read a file of the table.
"""

from __future__ import annotations

import traceback

import pytest

from etl.errors import PermissionDenied, SettingsError, TableUnreachable
from etl.io.delta.stores import public_cause, translate, unreachable, unreadable

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


@pytest.mark.parametrize(
    "text, message, file, exit_code",
    [
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered "
            "error while reading file "
            "file:/data/a%20table/topic=clicks/part-0.snappy.parquet. File does not exist. It is",
            "does not exist",
            "part-0.snappy.parquet",
            5,
        ),
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error "
            "while reading file s3a://b/t/part-0.parquet.  "
            "SQLSTATE: KD001",
            "cannot be read",
            "part-0.parquet",
            7,
        ),
        (
            "org.apache.spark.sql.delta.DeltaFileNotFoundException: "
            "[DELTA_TRUNCATED_TRANSACTION_LOG] "
            "file:/t/_delta_log/00000000000000000000.json: Unable to reconstruct state at "
            "version 1",
            "does not exist",
            "00000000000000000000.json",
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
    assert found.where["file"] == file
    assert found.where["path"] == "/data/a table"
    assert found.exit_code == exit_code
    assert found.retriable == (exit_code == 7)
    assert ("repair()" in found.action) == (exit_code == 5 and file.endswith("parquet"))


@pytest.mark.parametrize(
    "text",
    ["", "java.lang.OutOfMemoryError", "[ARITHMETIC_OVERFLOW] overflow. Use 'try_add' to tolerate"],
)
def test_any_other_failure_of_spark_is_not_the_tables(text: str) -> None:
    assert unreadable(AWAITED + text, "/data") is None
