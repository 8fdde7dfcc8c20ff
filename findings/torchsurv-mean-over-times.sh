#!/usr/bin/env bash
# Subject: torchsurv
# What: The default `reduction="mean"` of Cox's loss divides by the number of events, but with tied events by the number of distinct times, for the whole batch.
# Symptom: The loss jumps as soon as two events share a time: rounding days to months multiplies loss and gradients by the number of events per month.
# Concerns: deep Cox models on clients that record times in different units, and their step sizes
# Expected: the mean over patients with an event, as its documentation says ("mean of log likelihoods across patients"), with or without ties.
# Seen: 365 events, one a day: 5.56 with times in days, 38.45 in weeks, 170.61 in months; the sums are 2028 to 2047.
# Here: Cox's loss of a batch is divided by its number of patients, whatever times they share.
# Test: tests/tasks/test_losses.py::test_the_partial_likelihood_of_a_batch
. "$(dirname "$0")/environment"
install torchsurv==0.2.0 torch==2.15.0 numpy==2.4.6 pandas==2.3.3
python - << 'END'
import warnings
import torch
from torchsurv.loss.cox import neg_partial_log_likelihood as loss

warnings.simplefilter("ignore")
torch.manual_seed(0)
risk, days = torch.randn(365), torch.arange(1.0, 366.0)
event = torch.ones(365, dtype=torch.bool)
means = []
for name, unit in (("days", 1), ("weeks", 7), ("months", 30.5)):
    times = torch.ceil(days / unit)
    total, mean = (loss(risk, event, times, reduction=how).item() for how in ("sum", "mean"))
    means.append(round(mean, 2))
    print(f"{name}: {len(times.unique())} distinct times, sum {total:.1f}, mean {mean:.2f}, sum ÷ 365 events {total / 365:.2f}")
assert means == [5.56, 38.45, 170.61]
END
