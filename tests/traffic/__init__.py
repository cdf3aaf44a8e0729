"""How others than the package write to topics and read them, one module for each way that brokers
are spoken to.

`choice.traffic_of` knows which of them a cluster wants. What reads uses neither the package's
codecs nor its connections, so that a table can be compared with it.
"""
