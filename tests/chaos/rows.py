"""The rows of the crash matrix, one sentence each: the situation that the cases of a row share.

The pages docs/proof/crashes.md and docs/proof/stores.md print these sentences.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS: Mapping[int, str] = {
    1: "The run is stopped before its plan is stored.",
    2: "The run is stopped after its plan is stored, before the first fetch.",
    3: "The run is killed after it claimed the partitions with owner nodes.",
    4: "The first records are fetched: all processes, the driver alone or one worker is killed.",
    5: "Half of the data files are written: the same, and SIGINT or SIGTERM.",
    6: "All data files are written and not committed: all processes or the driver is killed.",
    7: "The run is stopped after the Delta commit, before the offsets are committed.",
    8: "The run is killed when half or all of the offsets are committed.",
    9: "A driver is paused past its ZooKeeper session; a second driver does the work; the first "
    "one continues.",
    10: "Two drivers start, store a plan or append at the same moment.",
    11: "ZooKeeper restarts, the session expires, or a connection is cut before or after a write.",
    12: "ZooKeeper is restored from an older copy, or emptied.",
    13: "The table is restored, overwritten, dropped, replaced, compacted or altered by others, "
    "between runs and during an append.",
    14: "Another client moves or deletes committed offsets.",
    15: "Brokers are killed, return or stay away; partitions lose or change their leader.",
    16: "Retention deletes offsets between runs, before the fetch or during the fetch.",
    17: "The topic is deleted or recreated, or gets partitions.",
    18: "Compacted topics, transactions in every state, partitions with no or one record.",
    19: "The network is slow, stalls, or cuts or resets answers.",
    20: "The disk is full or read-only while files are written.",
    21: "Spark on two hosts: tasks are retried or run twice, executors are killed.",
    22: "The run is killed, more records arrive, and one run loads all of them.",
    23: "Partitions are truncated: unclean leader election, or a broker's older disk. A broker is "
    "dead at the first run.",
    24: "A stored plan is superseded, retention deletes more, and it is superseded again.",
    25: "A segment is missing in the middle of a log, or remote storage returns nothing.",
    26: "A pipeline inherits another one, or another table is accepted, and the next run is "
    "killed.",
    27: "Two pipelines of a group start on one topic; range results are recovered from a table "
    "with column mapping, deletion vectors or a transform.",
    28: "Jafka 3.0.6, two brokers: the kills of rows 1 to 8, the two drivers of row 10.",
    29: "Kafka 0.8.2.2, two brokers: the same.",
    30: "Jafka: records that are not flushed are lost, retention deletes files during a read, "
    "a driver is paused.",
    31: "`etl replay` is killed.",
    32: "`etl backfills run` is killed while `etl run` goes on.",
    33: "A group member in ZooKeeper: its offset commit is rejected, or the answer is lost.",
    34: "A group member in ZooKeeper, together with another consumer: killed at each step.",
    35: "Partitions are paused and resumed around kills, lost answers and a lost ledger.",
    36: "Offsets are stored in Kafka: kills, lost answers, a coordinator that moves.",
    37: "Offsets are stored in ZooKeeper and in Kafka: the same, and kills between the two.",
    38: "A group member in Kafka, together with another consumer: killed, paused and rejected at "
    "each step.",
    39: "A group member that commits after the append, in ZooKeeper and in Kafka.",
    40: "The PUT of the commit is held, cut, late or not answered while the run is killed or "
    "paused; answers are lost, or the store answers 503.",
    41: "The topic of a stored plan is deleted or recreated; the command that gives up the plan, "
    "and the next run, are killed.",
    42: "A driver sleeps past its session with a stored plan while its pipeline is inherited or "
    "retired.",
    43: "The table has rows of the topic from before plan 1; the commands that resolve this, and "
    "the next run, are killed.",
}
"""Row 40 exists only where the table is in a store."""
