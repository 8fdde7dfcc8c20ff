#!/usr/bin/env bash
# Subject: p2pfl
# What: SCAFFOLD's PyTorch callback adds the control variates to gradients that Lightning sets to zero before the next ones are computed, so that they never reach a step.
# Symptom: Clients train as in FedAvg, however large the variates are; nothing is reported.
# Concerns: SCAFFOLD with P2PFL and PyTorch, and comparisons with it
# Expected: every local step is y − η(g − cᵢ + c), as in the paper (Karimireddy et al. 2020, algorithm 1, line 10).
# Seen: with c = 100 in all parameters the trained model is that without SCAFFOLD, to the last bit; by the paper it is 200 away.
# Here: Variates are added to the gradients of the step, and local steps are compared with steps by hand.
# Test: tests/methods/test_scaffold.py::test_control_variates
. "$(dirname "$0")/environment"
install p2pfl==0.4.4 "p2pfl[torch]" lightning==2.5.5 torch==2.2.2 torchvision==0.17.2 setuptools==75.8.0
python - << 'END'
import logging
import warnings

import lightning as pl
import torch
from p2pfl.learning.frameworks.pytorch.callbacks.scaffold_callback import SCAFFOLDCallback

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
RATE, VARIATE, STEPS = 0.1, 100.0, 20
torch.manual_seed(0)
x, y = torch.randn(8 * STEPS, 4), torch.randn(8 * STEPS, 2)
start = torch.nn.Linear(4, 2).state_dict()


class Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.layer.load_state_dict(start)

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


def trained(callbacks):
    network = Network()
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks)  # fmt: skip
    trainer.fit(network, rows)
    return torch.cat([p.detach().flatten() for p in network.parameters()])


scaffold = SCAFFOLDCallback()  # the client's own variates start at 0
scaffold.additional_info = {"global_c": [VARIATE * torch.ones_like(p).numpy() for p in start.values()]}
plain, found = trained([]), trained([scaffold])
print(f"steps {scaffold.K}; with and without variates the models differ by {(found - plain).abs().max().item()}")
print(f"the variates alone move a parameter by {STEPS * RATE * VARIATE:.0f} by the paper")
assert scaffold.K == STEPS and torch.equal(found, plain)
END
