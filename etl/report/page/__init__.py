"""What stands on the page of a run's report?

A run's report as one HTML page that stands alone: no script, no font, no picture from elsewhere.
"""
