#!/usr/bin/env bash
# Subject: peft
# What: LoRA on a convolution with circular or reflected padding pads the adapter's input with zeros; merged, the same adapter is padded as the layer is.
# Symptom: The merged model predicts something else than the adapted one that was trained and evaluated.
# Concerns: adapters of convolutional networks
# Expected: `merge_and_unload` is documented to keep the outputs; with zero padding it does.
# Seen: outputs near the border differ by more than 100 after merging, elsewhere and with zeros by 5e-5.
# Here: The suite does not use this function.
. "$(dirname "$0")/environment"
install torch==2.15.0 numpy==2.4.6 peft==0.21.2
python - << 'END'
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

for mode in ("zeros", "circular", "reflect"):
    torch.manual_seed(0)
    model = get_peft_model(
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode)), LoraConfig(r=2, target_modules=["0"])
    )
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data.normal_()
    x = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        adapted = model(x)
        change = (model.merge_and_unload()(x) - adapted).abs()
    inside, border = float(change[..., 1:-1, 1:-1].max()), float(change.max())
    print(f"{mode}: merging changes outputs by {border:.1e} at the border, {inside:.1e} elsewhere")
    assert inside < 1e-3 and (border > 1) == (mode != "zeros")
END
