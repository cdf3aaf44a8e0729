"""Reads exact offset ranges as a Spark DataFrame or into data files: options, tasks, the fetch loop.

Reads exact offset ranges of Kafka logs as a Spark DataFrame: options, tasks, the fetch loop,
receipts.
"""
