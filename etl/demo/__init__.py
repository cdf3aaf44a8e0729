"""`etl demo`: the whole path on real parts on this machine, with a run that is killed, and a proof.

`etl demo`: the whole path on real parts on this machine, with a run that is killed at the worst
moment, and a proof.
"""
