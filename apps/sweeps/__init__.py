"""Several runs whose names follow from their settings, and the report of a sweep."""
