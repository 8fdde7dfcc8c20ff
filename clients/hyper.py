"""The keys of every method, ``<method>.*``, with their ranges and meanings.

They are apart from the methods so that a configuration can be checked without importing torch, which takes seconds.
Defaults are in ``pyproject.toml``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from common.settings import Section, parse_numbers


class FedProxHyper(Section):
    """Keys ``fedprox.*``."""

    mu: float = Field(
        ge=0, description="weight μ of the proximal term; 0 is FedAvg. Its start value is 1 when adaptive."
    )
    adaptive: bool = Field(description="change μ with the training loss (Li et al. 2020, section 5.3.2)")


class ScaffoldHyper(Section):
    """Keys ``scaffold.*``."""

    option: Literal[1, 2] = Field(
        description="how c_i is renewed: the gradient at the received model, or the mean of the steps taken"
    )


class FedIIRHyper(Section):
    """Keys ``fediir.*``."""

    penalty: float = Field(ge=0, description="γ, weight of the distance between the client's and the mean gradient")
    momentum: float = Field(ge=0, lt=1, description="how much of the mean gradient's past stays in it every round")


class FedSRHyper(Section):
    """Keys ``fedsr.*``."""

    norm_penalty: float = Field(ge=0, description="α of ℓ^L2R, the mean squared length of representations")
    information_penalty: float = Field(ge=0, description="α of ℓ^CMI; 0: representations have no spread either")


class FedGTSTHyper(Section):
    """Keys ``fedgtst.*``."""

    coefficient: float = Field(ge=0, description="λ, weight of the distance between gradient norm and guide norm")
    standard_share: float = Field(ge=0, le=1, description="share of the cohort that also trains without it")
    norm_of: Literal["batch", "client"] = Field(description="which loss's gradient is regularised: a batch's, or all's")
    measured: Literal["received", "trained", "epoch"] = Field(
        description="where the norm that is sent is taken: at the received model, at the trained one, or on the way"
    )
    alignment: Literal["absolute", "relative"] = Field(description="(‖J‖ − Ĵ)², or (‖J‖/Ĵ − 1)²")
    guide: Literal["largest", "standard"] = Field(
        description="Ĵ: the largest norm received, or the largest of those that trained without the regulariser"
    )
    diagnose: bool = Field(description="also measure the variance of gradients themselves; in simulation alone")

    @field_validator("guide")
    @classmethod
    def _has_clients_to_come_from(cls, guide: str, info: ValidationInfo) -> str:
        if guide == "standard" and not info.data.get("standard_share"):
            raise ValueError("with fedgtst.standard-share = 0 no client trains without the regulariser")
        return guide


class FedL2PHyper(Section):
    """Keys ``fedl2p.*`` of `fedl2p` and `l2p`."""

    iterations: int = Field(ge=1, description="K, steps of λ in a round; each fine-tunes for `finetune-epochs`")
    meta_learning_rate: float = Field(gt=0, description="ζ of the meta-nets BNNet and LRNet")
    multiplier_learning_rate: float = Field(gt=0, description="ζ of the multipliers η̃")
    initial_rate: float = Field(gt=0, description="η̃ at first: the best learning rate of plain fine-tuning")
    hypergradient: Literal["ift", "fomaml+"] = Field(
        description="by implicit differentiation, or through the last fine-tuning step alone"
    )
    neumann_steps: int = Field(ge=0, description="Q, terms of the Neumann series after the first")
    neumann_rate: float = Field(gt=0, description="ψ, its step size")
    neumann_split: bool = Field(description="each term's Hessian is of its own share of the batch, not of all of it")
    neumann_scale: bool = Field(description="multiply the series by ψ, as the inverse needs; the paper does not")
    clip: float = Field(gt=0, description="bound of every entry of the hypergradient")
    learn: Literal["both", "bn", "lr"] = Field(
        description="which meta-nets there are: without LRNet the rate is `initial-rate`, without BNNet β is `mixing`"
    )
    mixing: float = Field(ge=0, le=1, description="β where BNNet is left out")
    hidden_biases: bool = Field(
        description="biases of hidden units start from 0.5 and 1, as those of outputs; else from 0"
    )
    pretraining_rounds: int = Field(ge=0, description="rounds of FedAvg that make the model first, where none is given")


class HeadHyper(Section):
    """Where the network is cut."""

    head_blocks: int = Field(ge=1, description="how many of the network's last blocks are the head; the rest: the body")


class FedRepHyper(HeadHyper):
    """Keys ``fedrep.*``."""

    head_epochs: int = Field(ge=0, description="k_h, epochs of the head in a round; `local-epochs` is not used")
    body_epochs: int = Field(ge=1, description="k_b, epochs of the body in a round")
    new_head_epochs: int = Field(ge=0, description="epochs of the head of a client that has none yet, before a test")


class FedBABUHyper(HeadHyper):
    """Keys ``fedbabu.*``."""

    finetune: Literal["whole", "head", "body"] = Field(description="what `finetune-epochs` tune before a test")


class DittoHyper(Section):
    """Keys ``ditto.*``."""

    regularization: float = Field(ge=0, description="λ, the weight of the pull of v_k towards the global model")
    personal_epochs: int = Field(ge=0, description="epochs of v_k in a round; 0: as many as `local-epochs`")


class PFedFDAHyper(Section):
    """Keys ``pfedfda.*``."""

    shrinkage: float = Field(gt=0, lt=1, description="share of a multiple of the identity in every covariance")
    ridge: float = Field(ge=0, description="added to the diagonal of every estimated covariance")
    folds: int = Field(ge=2, description="folds of the cross-validation that chooses β")


class PerFedAvgHyper(Section):
    """Keys ``per-fedavg.*``."""

    adaptation_rate: float = Field(gt=0, description="α, step size of the adaptation that the model is trained for")
    hessian: Literal["first-order", "hessian-free"] = Field(
        description="the second derivatives are left out (FO), or taken as differences of gradients (HF)"
    )
    difference: float = Field(gt=0, description="δ, half the distance of these differences")


class PFedMeHyper(Section):
    """Keys ``pfedme.*``."""

    regularization: float = Field(gt=0, description="λ, the weight of the pull of θ_i towards w")
    personal_steps: int = Field(ge=1, description="K, steps towards θ_i on each batch")
    personal_learning_rate: float = Field(gt=0, description="step size of these steps")


def parse_whole(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers ≥ 1."""
    if min(numbers := parse_counts(text)) < 1:
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers ≥ 1")
    return numbers


def _check_whole(text: str) -> str:
    parse_whole(text)
    return text


class KNNPerHyper(Section):
    """Keys ``knn-per.*``."""

    neighbors: Annotated[str, AfterValidator(_check_whole)] = Field(description="values of k to choose from")
    weights: int = Field(ge=1, description="the weight of the neighbours is chosen from 0, 1/n, …, 1 with this n")
    scale: float = Field(gt=0, description="σ: a neighbour at distance d counts exp(−d²/(σ·features))")


class HyperNetworkHyper(Section):
    """What makes clients' models on the server, and how it learns."""

    descriptor_size: int = Field(ge=0, description="l, length of a descriptor; 0: a quarter of the clients")
    hidden_layers: int = Field(ge=0, description="layers between the hypernetwork's first and its output layers")
    hidden_width: int = Field(ge=1, description="width of these layers")
    server_max_grad_norm: float = Field(ge=0, description="bound on the norm of the averaged update; 0: none")
    hypernetwork_penalty: float = Field(ge=0, description="λ_h, weight of the hypernetwork's squared norm")
    model_penalty: float = Field(ge=0, description="λ_θ, weight of a client model's squared norm in its objective")


class PeFLLHyper(HyperNetworkHyper):
    """Keys ``pefll.*``."""

    embedding: Literal["linear", "cnn", "cnn-unlabeled", "lstm"] = Field(
        description="φ: of the label alone; LeNet on image and label, or on the image alone; LSTM on text and label"
    )
    embedding_penalty: float = Field(ge=0, description="λ_v, weight of the embedding network's squared norm")
    descriptor_batch: int = Field(ge=1, description="examples that a descriptor is made of in training")
    test_batch: int = Field(ge=0, description="the same before a test; 0: all training examples of the client")
    normalize: Literal["none", "together", "each"] = Field(
        description="subtract from descriptors the mean, and divide by the deviation, of the first: of all their "
        "numbers together, or of each by itself"
    )
    keep_descriptors: bool = Field(description="write the descriptors of every evaluation to the run's folder")
    mask_labels: bool = Field(description="never predict classes that a client's training examples do not have")


class PFedHNHyper(HyperNetworkHyper):
    """Keys ``pfedhn.*``."""

    descriptor_penalty: float = Field(ge=0, description="weight of a descriptor's squared norm")
    descriptor_learning_rate: float = Field(
        ge=0, description="the server's step size for descriptors; 0: server-learning-rate"
    )
    new_client_exchanges: int = Field(ge=0, description="exchanges that fit the descriptor of a client never seen")


Stage = Literal["averaged", "personal", "local"]


def parse_stages(text: str) -> list[Stage]:
    """Parse the stages of ``ppfe-linear.stages``."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not set(words) <= {"averaged", "personal", "local"}:
        raise ValueError(f"'{text}' is not a comma-separated list of the words averaged, personal, local")
    return words  # type: ignore[return-value]


def _check_stages(text: str) -> str:
    parse_stages(text)
    return text


def _check_penalties(text: str) -> str:
    if not (numbers := parse_numbers(text)) or min(numbers) <= 0:
        raise ValueError(f"'{text}' is not a comma-separated list of numbers > 0")
    return text


class PPFELinearHyper(Section):
    """Keys ``ppfe-linear.*``."""

    stages: Annotated[str, AfterValidator(_check_stages)] = Field(
        description="what each stage fits: the mean of the clients' own solutions; a personal part beside a shared "
        "one; or each client alone"
    )
    penalties: Annotated[str, AfterValidator(_check_penalties)] = Field(description="the grid of ridge penalties λ")
    exchanges: int = Field(ge=1, description="rounds of averaging in a stage with a shared and a personal part")


def parse_counts(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers ≥ 0, at least one."""
    numbers = parse_numbers(text)
    if not numbers or any(number < 0 or number != int(number) for number in numbers):
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers, such as '30,50,40,40'")
    return [int(number) for number in numbers]


def _check_counts(text: str) -> str:
    parse_counts(text)
    return text


Counts = Annotated[str, AfterValidator(_check_counts)]


class PPFEHyper(Section):
    """Keys ``ppfe.*``."""

    personal_blocks: Counts = Field(description="personal blocks at the end of the network, for each stage 1..T")
    stage_rounds: Counts = Field(description="rounds of each stage; their sum is `rounds`")
    reduction: Literal["low-rank", "sparse", "width", "none"] = Field(
        description="how dense layers are made smaller: factors of given ranks from stage 3 on; masks or fewer hidden "
        "units of personal layers from stage 2 on; or not at all"
    )
    ranks: str = Field(description="ranks of the dense layers, first to last, for each stage from 3 on: '9,9;5,5'")
    factorise: Literal["saving", "always"] = Field(
        description="which dense layers are given a low rank: those that get smaller, or all of them"
    )
    sparsity: float = Field(ge=0, lt=1, description="share of masked weights of the first personal layers")
    later_sparsity: float = Field(ge=0, lt=1, description="the same for layers that become personal later")
    width_exponent: float = Field(ge=0, description="α: hidden units between personal layers shrink as t^−α")
    warm_start: Literal["previous", "first"] = Field(
        description="where a stage with reduced layers takes these from: the stage before, or stage 1's global model"
    )
    shared_learning_rate: float = Field(gt=0, description="learning rate of shared blocks in later stages")
    later_stage: int = Field(ge=1, description="the first of these later stages")
    reweighting: bool = Field(description="give examples that the ensemble gets wrong more weight in the next stage")
    reweight_by: Literal["ensemble", "stage"] = Field(
        description="whose losses make the next stage's weights: those of the ensemble so far, or of the stage's model"
    )
    loss: Literal["zero-one", "cross-entropy"] = Field(description="ℓ in the reweighting")
    max_loss: float = Field(gt=0, description="ℓ_max: where cross-entropy is clipped; 1 for the 0–1 loss")
    min_error: float = Field(gt=0, lt=0.5, description="ε is kept between this and one minus this")
    combination: Literal["probabilities", "logits", "last"] = Field(
        description="what the ensemble averages; or the last stage's model alone"
    )

    @field_validator("personal_blocks")
    @classmethod
    def _never_falls(cls, text: str) -> str:
        if sorted(parse_counts(text)) != parse_counts(text):
            raise ValueError(f"'{text}': what is personal stays so; a number may not be less than the one before")
        return text

    @field_validator("stage_rounds")
    @classmethod
    def _fits_stages(cls, text: str, info: ValidationInfo) -> str:
        stages = len(parse_counts(info.data.get("personal_blocks", text)))
        found = parse_counts(text)
        if len(found) != stages or min(found) < 1:
            raise ValueError(f"{len(found)} numbers for {stages} stages (ppfe.personal-blocks); give one ≥ 1 for each")
        return text

    @field_validator("ranks")
    @classmethod
    def _ranks_fit_stages(cls, text: str, info: ValidationInfo) -> str:
        needed = max(0, len(parse_counts(info.data.get("personal_blocks", "0"))) - 2)
        lists = [parse_counts(part) for part in text.split(";") if part.strip()]
        if info.data.get("reduction") == "low-rank" and len(lists) != needed:
            raise ValueError(f"{len(lists)} lists of ranks, but {needed} stages from stage 3 on; separate lists by ';'")
        if any(rank < 1 for ranks in lists for rank in ranks):
            raise ValueError("a rank is at least 1")
        return text

    @field_validator("max_loss")
    @classmethod
    def _zero_one_is_at_most_one(cls, value: float, info: ValidationInfo) -> float:
        if info.data.get("loss") == "zero-one" and value != 1:
            raise ValueError("the 0–1 loss is at most 1")
        return value


def _check_split(text: str) -> str:
    shares = parse_numbers(text)
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"the shares '{text}' must be above 0 and sum to 1 (they sum to {sum(shares):g})")
    return text


def _check_epsilons(text: str) -> str:
    if any(epsilon <= 0 for epsilon in parse_numbers(text)):
        raise ValueError(f"every ε of '{text}' must be above 0")
    return text


class KMeansHyper(Section):
    """Keys ``kmeans.*`` of all clustering methods."""

    k: int = Field(ge=1, description="number of clusters")
    choose_k: int = Field(ge=0, description="choose k from 1 to this after step 2 of FedDP-Init, by the elbow; 0: `k`")
    dimensions: int = Field(ge=0, description="of the data subspace of FedDP-Init; 0: k, or `choose-k`")
    restarts: int = Field(ge=1, description="of k-means on the server; the best is taken")
    weight_threshold: float = Field(ge=0, description="server points with a smaller noisy weight are dropped")
    margin: float = Field(
        ge=0, description="step 3 takes only points whose projection is this close to its centre; 0: all"
    )
    min_count: float = Field(
        ge=0, description="a cluster with a noisy count under so many noise scales (and under 1) keeps its centre"
    )
    privacy_unit: Literal["example", "client", "none"] = Field(
        description="what the guarantee is for: one example more or less, one client, or nothing (no noise)"
    )
    epsilon: float = Field(gt=0, description="ε of the whole run")
    delta: float = Field(gt=0, lt=1, description="δ of the whole run")
    split: Annotated[str, AfterValidator(_check_split)] = Field(
        description="shares of ε_1, ε_2, ε_3G, ε_3L in FedDP-Init's budget"
    )
    lloyds_share: float = Field(gt=0, lt=1, description="share of FedDP-Lloyds, where it takes steps, in the budget")
    lloyds_split: Annotated[str, AfterValidator(_check_split)] = Field(description="shares of ε_4G and ε_4L in it")
    epsilons: Annotated[str, AfterValidator(_check_epsilons)] = Field(
        description='ε_1, ε_2, ε_3G, ε_3L (and ε_4G, ε_4L) themselves, in place of `kmeans.epsilon`; "": none'
    )
    gaussian: Literal["analytic", "classical"] = Field(description="formula of the Gaussian mechanism's σ")
    radius: float = Field(ge=0, description="Δ, to which examples are clipped; 0: the radius of the server's data")
    client_size: int = Field(
        ge=0, description="points of a usual client, as is publicly known, for the bounds; 0: `samples-per-client`"
    )
    clip_outer: float = Field(ge=0, description="bound of what a client sends in step 1; 0: see the page")
    clip_weights: float = Field(ge=0, description="the same in step 2")
    clip_sums: float = Field(ge=0, description="the same in step 3 and FedDP-Lloyds, means")
    clip_counts: float = Field(ge=0, description="the same, contributions")
    noise_at: Literal["server", "device"] = Field(description="who adds the noise")
    dropout: float = Field(
        ge=0, lt=1, description="share of clients that may fail where devices add the noise: the others add more"
    )
    local_k: int = Field(ge=0, description="centres of each client in `k-fed`; 0: k")

    @field_validator("split", "lloyds_split")
    @classmethod
    def _has_a_share_for_every_release(cls, text: str, info: ValidationInfo) -> str:
        wanted = {"split": 4, "lloyds_split": 2}[str(info.field_name)]
        if len(parse_numbers(text)) != wanted:
            raise ValueError(f"'{text}' must have {wanted} shares")
        return text


def _check_sizes(text: str) -> str:
    if text and (len(edges := parse_whole(text)) < 2 or any(a >= b for a, b in pairwise(edges))):
        raise ValueError(f"'{text}' lists no increasing edges, such as '1,10,100,1000'")
    return text


def _check_bins(text: str) -> str:
    from partitions.features import parse_edges

    if text:
        parse_edges(text)
    return text


def _check_different(text: str) -> str:
    if len(set(numbers := parse_whole(text))) < len(numbers):
        raise ValueError(f"'{text}' has a number twice")
    return text


class MDMHyper(Section):
    """Keys ``mdm.*``."""

    components: Annotated[str, AfterValidator(_check_different)] = Field(
        description="K, or several to choose from in one run"
    )
    feature: str = Field(min_length=1, description="what is counted: `label`, or a column of a table")
    bins: Annotated[str, AfterValidator(_check_bins)] = Field(
        description="edges of the bins a column of numbers is counted in, as `0:200000:5000,inf`"
    )
    size_bins: Annotated[str, AfterValidator(_check_sizes)] = Field(
        description='edges of bins of clients\' sizes, as `1,10,100,1000`; "": a bin for every size'
    )
    max_size: int = Field(ge=0, description="M, the largest size, where every size has a bin; 0: the largest there is")
    validation_fraction: float = Field(
        ge=0, lt=1, description="share of the clients that choose among several K, and do nothing else"
    )
    tolerance: float = Field(
        ge=0, description="stop when no mean log-likelihood changes by this; where all clients take part in a round"
    )
    privacy_unit: Literal["client", "example", "none"] = Field(description="what the guarantee is for; none: no noise")
    epsilon: float = Field(gt=0, description="ε of the whole run")
    delta: float = Field(gt=0, lt=1, description="δ of the whole run")
    clip: float = Field(gt=0, description="bound on the norm of all that a client sends at a time, in a private run")

    @field_validator("max_size")
    @classmethod
    def _is_alone(cls, size: int, info: ValidationInfo) -> int:
        if size and info.data.get("size_bins"):
            raise ValueError("mdm.size-bins says already which sizes there are; leave one of them out")
        return size


class SubspaceHyper(Section):
    """Models in a random subspace."""

    dimensions: int = Field(ge=1, description="k, dimensions of the subspace")
    expansion: Literal["kronecker", "fastfood", "dense"] = Field(description="how the matrix P is drawn and applied")


class FLowDUPHyper(SubspaceHyper):
    """Keys ``flowdup.*``."""

    penalty: float = Field(ge=0, description="λ, weight of the pull of v towards ψ_r")
    learn_center: bool = Field(description="learn ψ_r; otherwise it stays 0")
    labeled_share: float = Field(gt=0, le=1, description="α, share of the cohort that has labels; 1: no others train")
    inner_model: str = Field(description='network of h₁; "": that of `model`')
    features: int = Field(ge=1, description="e, outputs of h₁")
    width: int = Field(ge=1, description="of the hidden layer of h₂")
    output_scale: float = Field(ge=0, description="factor on the initial parameters of the last layer of h₂")
    test_batch: int = Field(ge=0, description="inputs that make a model before a test; 0: all of the client")


class FedTTAHyper(Section):
    """Keys ``fedtta.*``."""

    adaptation_rate: float = Field(gt=0, description="α, step size of the adaptation to unlabeled inputs")
    width: int = Field(ge=1, description="of the two hidden layers of φ, the network that is the loss")
