"""What the owner of a device allows, enforced in the supervisor's own process: no code of a run is imported here."""
