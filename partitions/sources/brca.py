"""Fed-TCGA-BRCA: survival of breast cancer patients in six regions, as preprocessed and divided by FLamby (2022).

Each patient has age in years (not standardised) and 38 columns of 0 and 1, the days until death or the last contact (T)
and whether it was death (E). Eight patients have 0 days, and a time must be above 0: T counts the first day, too, which
does not change the order of times, on which loss and C-index depend. Open clinical data of the GDC: users must not try
to identify patients.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from florilegium.common.errors import DataError
from florilegium.partitions.sources.raw import need_columns, raw_files, read_csv
from florilegium.partitions.sources.source import Source, Tables, Unread
from florilegium.partitions.spec import DatasetSpec

FOLDER = "fed_tcga_brca"
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
REGION = "region"
_PATIENTS, _SPLIT = "brca.csv", "train_test_split.csv"
_WHERE = (
    "They are files of FLamby's repository, github.com/owkin/FLamby, in flamby/datasets/fed_tcga_brca; the data are "
    "those of the GDC, whose terms apply"
)
_RACES = ("asian", "black or african american", "not reported", "white")
_NODES = ("N0 (i-)", "N1", "N1a", "N2", "N2a")
_STAGES = ("IA", "IIA", "IIB", "IIIA", "IIIC")
FEATURES = (
    "age_at_index",
    "ethnicity_not hispanic or latino",
    "ethnicity_not reported",
    *(f"race_{race}" for race in _RACES),
    "ajcc_pathologic_m_MX",
    *(f"ajcc_pathologic_n_{node}" for node in _NODES),
    *(f"ajcc_pathologic_stage_Stage {stage}" for stage in _STAGES),
    *(f"ajcc_pathologic_t_{tumour}" for tumour in ("T1c", "T2", "T3")),
    *(f"ajcc_staging_system_edition_{edition}" for edition in ("5th", "6th", "7th")),
    "icd_10_code_C50.9",
    "morphology_8500/3",
    "morphology_8520/3",
    "primary_diagnosis_Infiltrating duct carcinoma, NOS",
    "primary_diagnosis_Lobular carcinoma, NOS",
    "prior_malignancy_yes",
    "synchronous_malignancy_Not Reported",
    "treatment_or_therapy_not reported",
    "treatment_or_therapy_yes",
    *(f"tumor_stage_stage {stage}" for stage in ("i", "ia", "iia", "iib", "iiia", "iiic")),
)
"""The 39 inputs, in order."""


def by_region(spec: DatasetSpec, source: Source) -> Unread:
    """Return the patients, not read yet, in the order of the file."""
    files = raw_files(spec, source, [_PATIENTS, _SPLIT], _WHERE)
    return Unread(spec.name, str(files[0].parent), files, lambda: _read(*files))


def _read(patients: Path, split: Path) -> Tables:
    table, parts = read_csv(patients), read_csv(split)
    need_columns(patients, table, ["pid", *FEATURES, "T", "E"])
    need_columns(split, parts, ["pid", "fold", "fold2"])
    for path, read in ((patients, table), (split, parts)):
        if read["pid"].duplicated().any():
            raise DataError(f"{path}: patient {read['pid'][read['pid'].duplicated()].iloc[0]} is there twice")
    whole = table.merge(parts, on="pid", how="inner")
    known = {f"{part}_{number}": name for part in ("train", "test") for number, name in enumerate(REGIONS)}
    if len(wrong := whole[~whole["fold2"].isin(known)]):
        raise DataError(f"{split}: column 'fold2' has {wrong['fold2'].iloc[0]!r}; expected {', '.join(known)}")
    found = {}
    for part in ("train", "test"):
        rows = whole[whole["fold2"].str.startswith(part)]
        columns = {name: rows[name].to_numpy() for name in (*FEATURES, "T", "E")}
        columns["T"] = columns["T"] + 1
        found[part] = pa.table(columns | {REGION: [known[fold] for fold in rows["fold2"]]})
    return found, []
