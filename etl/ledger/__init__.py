"""What stands in ZooKeeper and in the metadata of our Delta commits: paths and documents, parsed and rendered. No client.

What lies in ZooKeeper, and what our Delta commits say of themselves: paths and payloads, parsed
and rendered. No client here.
"""
