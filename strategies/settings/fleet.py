"""The configuration keys of the devices in a simulation, table ``fleet``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, model_validator

from florilegium.common.settings import Section, check_folder, key

ALWAYS, DIURNAL = "always", "diurnal"


def _check_availability(text: str) -> str:
    if not text:
        raise ValueError(f"it is empty; allowed: '{ALWAYS}', '{DIURNAL}', or the path of a trace file")
    return text if text in (ALWAYS, DIURNAL) else check_folder(text)


class FleetSettings(Section):
    """How fast the clients of a simulation compute and communicate, and when they are online."""

    title = "Devices of a simulation and its virtual clock ([more](fleets.md))"

    speed: float = key(0.0, "median compute speed, in training examples per second; 0: computation takes no time", ge=0)
    speed_sigma: float = key(
        0.7, "σ of the log-normal distribution of speeds over clients", ge=0, where="fleet.speed!=0"
    )
    download: float = key(0.0, "median bandwidth to a client, in megabits per second; 0: downloads take no time", ge=0)
    upload: float = key(0.0, "median bandwidth from a client, in megabits per second; 0: uploads take no time", ge=0)
    bandwidth_sigma: float = key(
        0.7,
        "σ of the log-normal distribution of bandwidths over clients",
        ge=0,
        where="fleet.download!=0 or fleet.upload!=0",
    )
    availability: Annotated[str, AfterValidator(_check_availability)] = key(
        ALWAYS,
        "when clients are online: always; once a day for `fleet.online` of it; or as in a trace file "
        "([format](fleets.md#availability))",
        values="`always`, `diurnal`, or a file's path",
    )
    online: float = key(
        0.5,
        "for `availability = diurnal`: share of each day that a client is online",
        gt=0,
        lt=1,
        where="fleet.availability=diurnal",
    )
    phase_sigma: float = key(
        3.0,
        "for `availability = diurnal`: standard deviation over clients of the time of day, in hours",
        ge=0,
        where="fleet.availability=diurnal",
    )
    dropout: float = key(0.0, "probability that a client fails in mid-training", ge=0, lt=1)
    detection: float = key(
        60.0,
        "seconds until the server notices that a client has failed or gone offline, about 60 in a Flower deployment; "
        "`round-timeout` at most counts",
        ge=0,
        where="fleet.dropout!=0 or fleet.availability!=always",
    )
    memory: float = key(
        0.0, "median memory for training, in MB; clients that lack it for the network take no part; 0: unlimited", ge=0
    )
    memory_sigma: float = key(
        0.7, "σ of the log-normal distribution of memory over clients", ge=0, where="fleet.memory!=0"
    )

    @property
    def timed(self) -> bool:
        """Whether anything takes time."""
        return bool(self.speed or self.download or self.upload)

    @property
    def on(self) -> bool:
        """Whether devices differ from ideal ones at all."""
        return self.timed or bool(self.dropout or self.memory)

    @model_validator(mode="after")
    def _lets_time_pass(self) -> FleetSettings:
        if self.availability != ALWAYS and not self.timed:
            raise ValueError("availability depends on time, which does not pass: set speed, download or upload")
        return self
