"""What lies in ZooKeeper, and what our Delta commits say of themselves: paths and payloads, parsed
and rendered. No client here.
"""
