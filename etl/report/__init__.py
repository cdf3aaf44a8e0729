"""What a run says of itself: its outcomes, what its time goes to, how far it is. Values to JSON."""
