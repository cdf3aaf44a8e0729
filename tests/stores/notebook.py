"""`python -m tests.stores.notebook EVENTS URL [REGEX]`: a session that existed before gets access to
a table's store. EVENTS is the directory of its event log.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from etl.io.spark.catalog import enter_store
from etl.model.security import SecretRef
from etl.settings.table import StoreSettings, TablePath
from etl.testkit.spark_launch import set_spark_environment
from tests.stores.servers import SECRET_VARIABLE

if __name__ == "__main__":
    set_spark_environment()
    events, url, *regex = sys.argv[1:]
    made = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
    )
    made = made.config("spark.eventLog.dir", f"file://{events}").config(
        "spark.eventLog.compress", "false"
    )
    for expression in regex:
        made = made.config("spark.redaction.regex", expression)
    session = made.getOrCreate()
    secret = SecretRef("env", SECRET_VARIABLE)
    if url.startswith("abfss://"):
        store = StoreSettings(account_key=secret)
    else:
        store = StoreSettings(access_key=secret, secret_key=secret)
    enter_store(session, TablePath(url, store))
    session.sparkContext.addFile(
        __file__
    )  # then Spark lists all settings in its event log, Hadoop's too
    session.stop()
