"""Boosted trees as a model file of XGBoost (JSON), for rows in the columns' units, with NaN where a value lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from florilegium.models.parameters import Arrays, arrays_of
from florilegium.models.trees import MOST, Trees

VERSION = (3, 0, 0)
"""The version of XGBoost whose format this is; later ones read it."""
OBJECTIVES = {"linear": "reg:squarederror", "logistic": "binary:logistic", "multinomial": "multi:softprob"}
_NO_PARENT = 2**31 - 1


def xgboost_model(trees: Trees, family: str, features: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Return the content of a file that ``xgboost.Booster(model_file=…)`` reads.

    Args:
        trees: the ensemble.
        family: a key of :data:`OBJECTIVES`.
        features: name of each input, and the mean and deviation that it is standardised with. Of what says that a value
            lacks nothing is used: the value itself is NaN.
    """
    arrays, k = arrays_of(dict(trees.named_parameters())), trees.k
    grown = np.flatnonzero(arrays["leaf"].any(axis=1))
    number = 0 if not len(grown) else k * (1 + int(grown[-1]) // k)
    number = max(number, k)  # the first trees have the margins without trees in their leaves
    arrays["leaf"][:k] += arrays["bias"][:, None]
    classes = {"num_class": str(k if family == "multinomial" else 0)}
    objective: dict[str, Any] = {"name": OBJECTIVES[family], "reg_loss_param": {"scale_pos_weight": "1"}}
    if family == "multinomial":
        objective = {"name": OBJECTIVES[family], "softmax_multiclass_param": classes}
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(number)},
        "iteration_indptr": [*range(0, number + 1, k)], "tree_info": [tree % k for tree in range(number)],
        "trees": [_tree({n: one[i] for n, one in arrays.items() if n != "bias"}, i, features) for i in range(number)],
    }  # fmt: skip
    return {
        "learner": {
            "attributes": {}, "feature_names": [name for name, _, _ in features],
            "feature_types": ["float"] * len(features), "gradient_booster": {"model": model, "name": "gbtree"},
            "learner_model_param": {
                "base_score": "5E-1" if family == "logistic" else "0E0", "boost_from_average": "0", **classes,
                "num_feature": str(len(features)), "num_target": "1",
            },
            "objective": objective,
        },
        "version": [*VERSION],
    }  # fmt: skip


def _tree(own: Arrays, number: int, features: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Return a tree in XGBoost's form: nodes in depth-first order, without those that send all to the left."""
    inner = len(own["feature"])
    rows: list[dict[str, Any]] = []

    def add(node: int, parent: int) -> int:
        while node < inner and own["threshold"][node] == MOST and own["lacking"][node] < 0:
            node = 2 * node + 1
        at = len(rows)
        rows.append({
            "parents": parent, "left_children": -1, "right_children": -1, "split_indices": 0, "default_left": 0,
        })  # fmt: skip
        if node >= inner:
            rows[at]["split_conditions"] = float(own["leaf"][node - inner])
            return at
        feature = int(own["feature"][node])
        _, mean, std = features[feature]
        threshold = float(own["threshold"][node])
        rows[at] |= {
            "split_indices": feature, "default_left": int(own["missing"][node]),
            "split_conditions": threshold if threshold == MOST else float(np.float32(mean + std * threshold)),
        }  # fmt: skip
        rows[at]["left_children"] = add(2 * node + 1, at)
        rows[at]["right_children"] = add(2 * node + 2, at)
        return at

    add(0, _NO_PARENT)
    zeros = [0.0] * len(rows)
    return {
        **{name: [row[name] for row in rows] for name in rows[0]},
        "base_weights": zeros, "loss_changes": zeros, "sum_hessian": zeros, "split_type": [0] * len(rows),
        "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [], "id": number,
        "tree_param": {
            "num_deleted": "0", "num_feature": str(len(features)), "num_nodes": str(len(rows)), "size_leaf_vector": "1",
        },
    }  # fmt: skip
