"""Stores that tests put tables into: real servers that speak S3, Azure's protocol and HDFS, and a
way to them that fails when told to.
"""
