"""What is in a folder that a server works in at the same time."""

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Every file; what vanishes during the look is passed over, and a folder that does not exist has none."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]
