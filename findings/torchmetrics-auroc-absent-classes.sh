#!/usr/bin/env bash
# Subject: torchmetrics
# What: The macro AUROC counts classes that have no example as 0. Average precision leaves them out, but counts them as 0 once `thresholds` are given.
# Symptom: Clients with few classes have an AUROC near or below 0.5, whatever they learn; the mean over clients falls with heterogeneity.
# Concerns: evaluation on clients that lack classes
# Expected: the accuracy, F1 and average precision of the same package leave absent classes out of the macro average.
# Seen: three of five classes present: AUROC 0.59 instead of 0.98; average precision 0.97, with thresholds 0.58.
# Here: Figures are means over the classes that a client has, as scikit-learn computes them one by one.
# Test: tests/tasks/test_metrics.py::test_classes_without_examples_do_not_lower_a_figure
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 torchmetrics==1.9.0
python - << 'END'
import torch
from torchmetrics.classification import MulticlassAUROC, MulticlassAveragePrecision

torch.manual_seed(0)
y = torch.randint(0, 3, (300,))  # of five classes
scores = torch.rand(300, 5)
scores[range(300), y] += 0.8
scores = scores / scores.sum(1, keepdim=True)


def figures(metric, **keys):
    each = metric(5, average="none", **keys)(scores, y)
    return float(metric(5, **keys)(scores, y)), float(each[:3].mean())


for name, metric, keys in (
    ("AUROC", MulticlassAUROC, {}),
    ("average precision", MulticlassAveragePrecision, {}),
    ("average precision, thresholds", MulticlassAveragePrecision, {"thresholds": 200}),
):
    macro, present = figures(metric, **keys)
    print(f"{name}: macro {macro:.3f}, mean of the three classes that occur {present:.3f}")
    assert abs(macro - (present if name == "average precision" else present * 3 / 5)) < 1e-3
END
