"""The generations of brokers, one folder each: what is asked and answered, to bytes and back.
Generations do not know one another.
"""
