"""The configuration keys of a run, parsed and described."""
