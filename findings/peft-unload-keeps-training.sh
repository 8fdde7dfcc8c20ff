#!/usr/bin/env bash
# Subject: peft
# What: `unload()` removes adapters, but keeps the trained copies of `modules_to_save` in place of the original layers.
# Symptom: The "base model" that a client goes back to has another client's or the last round's classifier.
# Concerns: federated fine-tuning that reuses one base model for many clients
# Expected: the documentation: unload returns the base model by removing all LoRA modules without merging; `disable_adapter` does use the original layers.
# Seen: weights of the body are those of the base model; weights of the classifier differ by 1, which was added for training.
# Here: The suite does not use this function.
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 peft==0.21.2
python - << 'END'
from collections import OrderedDict

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

torch.manual_seed(0)
base = nn.Sequential(OrderedDict(body=nn.Linear(4, 4), head=nn.Linear(4, 2)))
before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
x = torch.randn(3, 4)
right = base(x)
model = get_peft_model(base, LoraConfig(r=2, target_modules=["body"], modules_to_save=["head"]))
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 1  # stands for training
with model.disable_adapter():
    assert torch.allclose(model(x), right)
after = model.unload()
moved = {name: float((tensor - before[name]).abs().max()) for name, tensor in after.state_dict().items()}
print(moved)
assert moved["body.weight"] == moved["body.bias"] == 0 and moved["head.weight"] > 0.9
END
