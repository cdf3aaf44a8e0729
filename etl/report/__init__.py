"""What a run says of itself: outcomes, where its time goes, how far it is. Values to JSON, text and HTML.

What a run says of itself: its outcomes, what its time goes to, how far it is. Values to JSON.
"""
