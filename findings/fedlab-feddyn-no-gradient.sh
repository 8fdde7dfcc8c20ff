#!/usr/bin/env bash
# Subject: fedlab
# What: FedDyn's two client terms, the linear and the quadratic one, are computed from detached parameters and have no gradient: clients train as FedAvg's do, whatever α is.
# Symptom: α changes what the server does, and nothing at the clients, whose models drift as in FedAvg.
# Concerns: FedDyn with FedLab, and comparisons with it
# Expected: the gradient of −⟨∇L, θ⟩ + α/2 ‖θ − θₜ₋₁‖² in every local step, as in the paper (Acar et al. 2021, equation 1).
# Seen: from the same start, with α = 0.01 and with α = 5, the same model to the last bit; by the paper the two differ by up to 0.48.
# Here: FedDyn's terms are part of the loss, and local steps are compared with steps by hand.
# Test: tests/methods/test_global_models.py::TestFedDyn::test_a_clients_steps_and_memory
. "$(dirname "$0")/environment"
install fedlab==1.3.0 torch==2.15.0 torchvision numpy==2.4.6 setuptools
python - << 'END'
import torch
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer

torch.manual_seed(0)
x, y = torch.randn(32, 4), torch.randint(3, (32,))
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
network = torch.nn.Linear(4, 3)
STEPS, RATE = 10 * len(batches), 0.1


def theirs(α):
    trainer = FedDynSerialClientTrainer(network, 1)
    trainer.setup_optim(10, 8, RATE, α)
    return trainer.train(0, trainer.model_parameters, batches)[0]


def by_the_paper(α):  # the linear term is 0 in a client's first round
    model = torch.nn.Linear(4, 3)
    model.load_state_dict(network.state_dict())
    for step in range(STEPS):
        rows, labels = batches[step % len(batches)]
        away = sum(((p - q.detach()) ** 2).sum() for p, q in zip(model.parameters(), network.parameters()))
        loss = torch.nn.functional.cross_entropy(model(rows), labels) + α / 2 * away
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients):
                p -= RATE * gradient
    return torch.cat([p.detach().flatten() for p in model.parameters()])


weak, strong, plain = theirs(0.01), theirs(5.0), by_the_paper(0.0)
differ = (by_the_paper(0.01) - by_the_paper(5.0)).abs().max().item()
print(f"FedLab with α = 0.01 and 5: differ by {(weak - strong).abs().max().item()}; by the paper by {differ:.2f}")
print(f"FedLab with α = 5 and FedAvg's local training: differ by {(strong - plain).abs().max().item():.1e}")
assert torch.equal(weak, strong) and torch.allclose(strong, plain, atol=1e-6) and differ > 0.1
END
