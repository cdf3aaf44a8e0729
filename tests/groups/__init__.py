"""Groups with members of ours, as processes of their own, and of others: what takes long."""
