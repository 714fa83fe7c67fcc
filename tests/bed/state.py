"""What a bed that was brought up is known by."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.bed.settings import Settings, write_file


@dataclass
class State:
    """What is fixed when a bed comes up and needed to find it again; kept as `bed.json`."""

    settings: Settings
    mark: str
    port_base: int = 0
    cgroup_version: str = ""
    ready: bool = False

    def save(self) -> None:
        text = json.dumps({**vars(self), "settings": json.loads(self.settings.to_json())}, indent=2)
        write_file(self.settings.path("bed.json"), text, mode=0o600)

    @classmethod
    def load(cls, folder: str) -> "State | None":
        try:
            entries = json.loads(Path(folder, "bed.json").read_text())
        except FileNotFoundError:
            return None
        settings = Settings.from_json(json.dumps(entries.pop("settings")))
        return cls(settings=settings, **entries)
