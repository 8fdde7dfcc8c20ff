"""Registry of datasets: the suite's own table, and what other packages provide.

How they are read is in :mod:`florilegium.partitions.loading`.
"""

from __future__ import annotations

from dataclasses import replace

from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry
from florilegium.common.settings import folder
from florilegium.partitions.sources import banking, brca, heart
from florilegium.partitions.sources.arrays import ArrayFunction, read_entry
from florilegium.partitions.sources.hub import PREFIX
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.sources.tables import ADULT, as_they_are
from florilegium.partitions.spec import DatasetSpec


def _grey(
    name: str, hub: str, y: str, classes: int, mean: float, std: float, side: int = 28, clients: tuple[str, ...] = (),
    test: bool = True,
) -> DatasetSpec:  # fmt: skip
    return DatasetSpec(name, hub, "image", "image", y, classes, (1, side, side), (mean,), (std,), clients, test)


_Triple = tuple[float, float, float]


def _colour(
    name: str,
    hub: str,
    x: str,
    y: str,
    classes: int,
    mean: _Triple,
    std: _Triple,
    side: int = 32,
    subset: str | None = None,
    source: str = "",
) -> DatasetSpec:
    shape = (3, side, side)
    return DatasetSpec(name, hub, "image", x, y, classes, shape, mean, std, subset=subset, source=source)


_REVISIONS = {
    "uoft-cs/cifar10": "0b2714987fa478483af9968de7c934580d0bb9a2",
    "uoft-cs/cifar100": "aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    "ylecun/mnist": "77f3279092a1c1579b2250db8eafed0ad422088c",
    "zalando-datasets/fashion_mnist": "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2",
    "flwrlabs/femnist": "df739a2b09df2b5cc1ec93107659b9a9a8566487",
    "flwrlabs/shakespeare": "2cfe3a5ba0d9b34634ade086803a479b2c2b8e11",
    "scikit-learn/adult-census-income": "fbeef6ec0e6fd88a5028b94683144000a6b380d5",
}
"""The commit of each repository of the hub that is read; those without one follow their branch "main"."""

_OWN = {
    spec.name: replace(spec, revision=_REVISIONS.get(spec.hub, ""))
    for spec in (
        # Pixel values are 0..16, but are divided by 255 like all others, so mean and deviation are small.
        replace(
            _grey("digits", "", "label", 10, 0.01915, 0.02359, side=8), brightest=16,
            raw="florilegium.partitions.sources.digits:found",
        ),
        _colour(
            "cifar10", "uoft-cs/cifar10", "img", "label", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        ),
        # Ten corruptions of CIFAR-10's test images, computed when the dataset is loaded.
        DatasetSpec(
            "cifar10_c", "uoft-cs/cifar10", "image", "img", "label", 10, (3, 32, 32), (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616), client_columns=("corruption",), source="cifar10",
            derived="florilegium.partitions.sources.corruptions:corrupted",
        ),
        _colour(
            "cifar100", "uoft-cs/cifar100", "img", "fine_label", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
        ),
        _grey("mnist", "ylecun/mnist", "label", 10, 0.1307, 0.3081),
        # MNIST with three equal channels, for networks that are later trained on colour images.
        _colour(
            "mnist_rgb", "ylecun/mnist", "image", "label", 10, (0.1307,) * 3, (0.3081,) * 3, 28, source="mnist"
        ),
        _grey("fashion_mnist", "zalando-datasets/fashion_mnist", "label", 10, 0.2860, 0.3530),
        _colour(
            "mnist_m", "Mike0307/MNIST-M", "image", "label", 10, (0.4342, 0.4378, 0.3853), (0.2515, 0.2380, 0.2490), 28
        ),
        _grey(
            "femnist", "flwrlabs/femnist", "character", 62, 0.9637, 0.1592, clients=("writer_id",), test=False
        ),
        _grey("emnist_letters", "tanganke/emnist_letters", "label", 26, 0.1722, 0.3309),
        _colour(
            "svhn", "ufldl-stanford/svhn", "image", "label", 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970),
            subset="cropped_digits",
        ),
        DatasetSpec(
            "shakespeare", "flwrlabs/shakespeare", "characters", "x", "y", 80, (80,),
            client_columns=("client_id", "character_id"), test=False,
        ),
        DatasetSpec(
            "sent140", "stanfordnlp/sentiment140", "characters", "text", "sentiment", 2, (140,),
            client_columns=("user",), test=False, labels=(0, 4),
        ),
        DatasetSpec(
            "sent140_words", "stanfordnlp/sentiment140", "words", "text", "sentiment", 2, (25, 300),
            client_columns=("user",), test=False, labels=(0, 4), source="sent140",
        ),
        DatasetSpec(
            "adult", "scikit-learn/adult-census-income", "table", "", "income", 2, (108,),
            client_columns=("occupation", "workclass", "native.country", "education"), test=False,
            labels=("<=50K", ">50K"), table=ADULT,
        ),
        *(
            DatasetSpec(
                name, "", "table", "", heart.TARGET, 2, (len(heart.FEATURES),), client_columns=(heart.HOSPITAL,),
                source=heart.FOLDER, table=as_they_are(heart.FEATURES), task="binary",
                raw=f"florilegium.partitions.sources.heart:{reader}",
            )
            for name, reader in (
                ("fed-heart", "by_hospital"), ("fed-heart-pooled", "together"), ("fed-heart-raw", "unscaled")
            )
        ),
        DatasetSpec(
            "banking77", "", "characters", "text", "category", banking.INTENTS, (200,),
            labels=tuple(range(banking.INTENTS)), source="banking77",
            raw="florilegium.partitions.sources.banking:questions",
        ),
        DatasetSpec(
            "fed-tcga-brca", "", "table", "", "T", 0, (len(brca.FEATURES),), client_columns=(brca.REGION,),
            source=brca.FOLDER, table=as_they_are(brca.FEATURES), task="survival", further=("E",),
            raw="florilegium.partitions.sources.brca:by_region",
        ),
        DatasetSpec(
            "synthetic-linear", "", "numbers", "x", "y", 0, (100,), client_columns=("client",),
            made="florilegium.partitions.sources.synthetic:linear",
        ),
        *(
            DatasetSpec(
                name, "", "table", "", "", classes, (1,), client_columns=("client",), 
                made="florilegium.partitions.sources.histograms:histograms",
            )
            for name, classes in (("histograms", 10), ("histograms-5", 5))
        ),
        DatasetSpec(
            "gaussian-mixture", "", "table", "", "", 10, (100,), made="florilegium.partitions.sources.mixture:mixture",
        ),
    )
}  # fmt: skip

DATASETS: Registry[DatasetSpec | ArrayFunction] = Registry(
    "dataset", "a dataset", _OWN, read_entry, ("'./folder'", "'hub:org/name'")
)
"""All datasets by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


def find_spec(name: str) -> DatasetSpec:
    """Return the description of a dataset that is known without its data, as on a device.

    A path names a custom dataset: a folder with ``schema.toml``. See :func:`florilegium.partitions.loading.dataset_of`
    for datasets whose schema is inferred.

    Raises:
        ConfigurationError: if there is no such dataset (the message suggests the closest name), or only its data say
            what it is.
    """
    if not name.startswith(PREFIX):
        entry = read_schema(folder(name)) if "/" in name else DATASETS[name]
        if isinstance(entry, DatasetSpec):
            return entry
    raise ConfigurationError(
        f"dataset: what '{name}' is can only be inferred from its data. Write its schema to a folder with `florilegium "
        f"schema {name} --output FOLDER` where the data are, copy the folder, and name it as dataset"
    )
