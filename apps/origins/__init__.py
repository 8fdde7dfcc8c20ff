"""What a run is made from: code, versions, packages, data, the app that nodes receive."""
