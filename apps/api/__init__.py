"""The Python interface, ``import florilegium as fl`` (docs/python.md); everything else in the package is internal."""

import warnings

# The suite draws its own progress in notebooks. Without ipywidgets, tqdm, which Flower's data sets import, would begin
# every notebook with a warning about bars that are never shown.
warnings.filterwarnings("ignore", message="IProgress not found")
