"""Stores for the tables of tests: real servers with the protocols of S3, Azure and HDFS, and a
proxy that fails on request.
"""
