"""How the process of a run is confined: what it may read and write, no network, limits. Linux alone has all of it."""
