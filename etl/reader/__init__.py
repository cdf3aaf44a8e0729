"""Reads exact offset ranges of Kafka logs as a Spark DataFrame: options, tasks, the fetch loop,
receipts.
"""
