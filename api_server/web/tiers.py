"""What the document reserves to a tier or an offering (decision D1)."""

from typing import get_args

import attrs

from api_server.settings import Offering, Settings, Tier
from api_server.web.errors import forbidden

_ORDER: tuple[Tier, ...] = get_args(Tier)


@attrs.frozen
class Feature:
    """A capability as refusals name it, with the least tier and the offerings that have it."""

    name: str
    tier: Tier = "free"
    offerings: tuple[Offering, ...] = get_args(Offering)


def require(feature: Feature, settings: Settings) -> None:
    """Raises the 403 that says why `feature` is missing here, if it is."""
    if _ORDER.index(settings.tier) < _ORDER.index(feature.tier):
        raise forbidden(f"{feature.name} is not available on the {settings.tier} tier")
    if settings.offering not in feature.offerings:
        raise forbidden(f"{feature.name} is not available on the {settings.offering} offering")
