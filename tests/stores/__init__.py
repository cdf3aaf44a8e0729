"""Stores for the tables of tests: real servers of S3, Azure and HDFS, and a proxy that fails."""
