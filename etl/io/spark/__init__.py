"""The Spark session, its catalogs, and what its failures mean."""
