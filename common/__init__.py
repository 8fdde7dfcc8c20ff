"""The bottom layer: settings, seeds, files and errors that every other package uses."""
