"""`etl demo`: the whole path on real servers on this machine, with a killed run and a proof."""
