"""What attackers of a simulation do: they poison their examples, or forge the updates that they return."""
