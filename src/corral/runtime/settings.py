"""Settings of a pool: environment variables ``CORRAL_*`` over ``config.toml`` in the state directory over defaults."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from corral.control.config import ControlConfig
from corral.model.errors import InvalidField
from corral.policy.config import SchedulingConfig

CONFIG_NAME = "config.toml"


class Settings(BaseSettings):
    """What an administrator may set. Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="CORRAL_", extra="forbid", frozen=True)

    node_silent_s: float = Field(5.0, gt=1.0, le=600.0, description="A node that is silent for so long is suspect.")
    node_lost_s: float = Field(
        10.0,
        gt=1.0,
        le=3600.0,
        description="A suspect node is given up and fenced after so long; its exclusive tasks keep their leases.",
    )
    fence_command: str = Field(
        "",
        description="Command that cuts the power of a lost node (its name is added); exit code 0 proves that.",
    )
    fence_timeout_s: float = Field(60.0, gt=0.0, le=3600.0, description="How long the fence command may take.")
    usage_half_life_s: float = Field(
        3600.0, ge=10.0, le=30 * 86400.0, description="Half-life of the usage that fair shares remember."
    )
    round_s: float = Field(
        60.0,
        ge=0.1,
        le=86400.0,
        description="Time between global rounds, which weigh running jobs against waiting ones.",
    )
    tenure_s: float = Field(
        600.0, ge=0.0, le=30 * 86400.0, description="A job that has started is not preempted for so long."
    )
    tenure_restarts: float = Field(
        10.0,
        ge=0.0,
        le=1000.0,
        description="Nor for so many times what its restart costs (`restart_cost`), whichever is longer.",
    )
    fairness: float = Field(
        0.15,
        ge=0.0,
        le=1.0,
        description="From the shortest average completion time (0) to the least harm to the worst-off job (1).",
    )
    patience_s: float = Field(
        90 * 86400.0,
        ge=60.0,
        le=10 * 365 * 86400.0,
        description="A job that has waited for so long goes before those that came after it, whatever they need.",
    )
    grace_default_s: float = Field(
        10.0, ge=0.0, le=3600.0, description="Seconds between SIGTERM and SIGKILL for jobs that set no grace."
    )
    jobs_max: int = Field(100_000, ge=1, le=10_000_000, description="Unfinished jobs that the pool accepts.")
    port_first: int = Field(20_000, ge=1024, le=65_000, description="First rendezvous port (MASTER_PORT).")
    port_last: int = Field(29_999, ge=1025, le=65_535, description="Last rendezvous port (MASTER_PORT).")
    history_retention_s: float = Field(
        30 * 86400.0, ge=3600.0, description="How long the journal keeps the events of finished jobs."
    )
    log_file_mib: int = Field(64, ge=1, le=65_536, description="Size of one log file of a task before it is rotated.")
    log_files: int = Field(4, ge=1, le=100, description="Log files kept per task.")
    tasks_kept: int = Field(2_000, ge=0, le=1_000_000, description="Directories (logs) of ended tasks kept per node.")
    tasks_kept_s: float = Field(7 * 86400.0, ge=0.0, description="How long those directories are kept at most.")
    upload_max_mib: int = Field(
        1_024, ge=1, le=1_048_576, description="What a job may send along: its working directory and mounts together."
    )
    return_max_mib: int = Field(
        4_096, ge=1, le=1_048_576, description="What a task may give back as outputs, and as a checkpoint."
    )
    cache_max_mib: int = Field(
        20_480, ge=1, le=104_857_600, description="What a node keeps of files that were sent, for the next job."
    )
    files_kept_s: float = Field(
        7 * 86400.0,
        ge=3600.0,
        description="How long sent files, outputs and logs are kept that no unfinished job needs.",
    )
    log_returned_mib: int = Field(
        16, ge=1, le=65_536, description="What is kept at the controller of each log that came back from a node."
    )
    shared_paths: tuple[str, ...] = Field(
        (), description="Absolute paths that all machines see alike: what lies there is used in place, and never sent."
    )

    serve_here: bool = Field(True, description="A head serves as a front end once there is a service.")
    serve_host: str = Field("127.0.0.1", description="Address at which it serves; 0.0.0.0 is all.")
    serve_port: int = Field(7480, ge=1, le=65_535, description="Port at which it serves all services.")
    serve_metrics_host: str = Field("127.0.0.1", description="Address at which a front end tells its metrics.")
    serve_metrics_port: int = Field(7481, ge=0, le=65_535, description="Port of those metrics; 0: nowhere.")
    serve_tls_cert: str = Field("", description="Certificate (PEM file) of that port; empty: no TLS.")
    serve_tls_key: str = Field("", description="Key of that certificate (PEM file).")

    @field_validator("fence_command")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from None
        return value

    @model_validator(mode="after")
    def _ports_in_order(self) -> Settings:
        if self.port_last < self.port_first:
            raise ValueError(f"port_last ({self.port_last}) is below port_first ({self.port_first})")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments, environment, file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def control_config(settings: Settings, *, leases: bool = False) -> ControlConfig:
    """Return the constants of control from the settings. ``leases``: the engine can lose contact with its nodes."""
    return ControlConfig(
        scheduling=SchedulingConfig(
            usage_half_life_s=settings.usage_half_life_s,
            round_s=settings.round_s,
            tenure_s=settings.tenure_s,
            tenure_restarts=settings.tenure_restarts,
            fairness=settings.fairness,
            patience_s=settings.patience_s,
        ),
        node_silent_s=settings.node_silent_s,
        node_lost_s=settings.node_lost_s,
        port_first=settings.port_first,
        port_last=settings.port_last,
        grace_default_s=settings.grace_default_s,
        jobs_max=settings.jobs_max,
        leases=leases,
    )


def load_settings(state_dir: Path) -> Settings:
    """Read the settings of a pool. Raises ``InvalidField`` naming the setting, or the file when it is not TOML."""
    place = state_dir / CONFIG_NAME

    class Located(Settings):
        model_config = SettingsConfigDict(env_prefix="CORRAL_", extra="forbid", frozen=True, toml_file=place)

    try:
        return Located()  # type: ignore[call-arg, unused-ignore]
    except ValidationError as error:
        raise _refusal(error, place) from None
    except (ValueError, OSError) as error:
        raise InvalidField(f"{place} is not TOML: {error}") from None


def _refusal(error: ValidationError, place: Path) -> InvalidField:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        known = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(Settings.model_fields))}"
        return InvalidField("is no setting", field=name, hint=f"from {place}; {known}")
    if first["type"] == "value_error":
        # A rule over several settings has no place of its own.
        message, field = str(first["ctx"]["error"]), name or "port_last"
        return InvalidField(message, field=field, hint=f"from {place} or the environment")
    return InvalidField(
        f"{first['msg'].lower()}, not {first.get('input')!r}",
        field=name,
        hint=f"from {place} or CORRAL_{name.upper()}",
    )
