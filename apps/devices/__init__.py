"""An owner's device: its SuperNode, what it keeps of runs, and a fleet at a glance."""
