"""Settings of a pool: environment variables ``CORRAL_*`` over ``config.toml`` in the state directory over defaults."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from corral.model.errors import InvalidField, JobFileUnreadable

CONFIG_NAME = "config.toml"


class Settings(BaseSettings):
    """What an administrator may set. Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="CORRAL_", extra="ignore", frozen=True)

    node_silent_s: float = Field(5.0, gt=1.0, le=600.0, description="A node that is silent for so long is suspect.")
    node_lost_s: float = Field(
        10.0, gt=1.0, le=3600.0, description="A suspect node is fenced and given up after so long."
    )
    usage_half_life_s: float = Field(
        3600.0, ge=10.0, le=30 * 86400.0, description="Half-life of the usage that fair shares remember."
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


def load_settings(state_dir: Path) -> Settings:
    """Read the settings of a pool. Raises ``InvalidField`` naming the setting, ``JobFileUnreadable`` for bad TOML."""

    class Located(Settings):
        model_config = SettingsConfigDict(
            env_prefix="CORRAL_", extra="ignore", frozen=True, toml_file=state_dir / CONFIG_NAME
        )

    try:
        return Located()  # type: ignore[call-arg, unused-ignore]
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidField(
            f"{first['msg'].lower()}, not {first.get('input')!r}",
            field=name,
            hint=f"from {state_dir / CONFIG_NAME} or CORRAL_{name.upper()}",
        ) from None
    except ValueError as error:
        raise JobFileUnreadable(f"{state_dir / CONFIG_NAME} is not TOML: {error}") from None
