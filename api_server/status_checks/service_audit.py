"""What the audit trail is told of status check services."""

from collections.abc import Iterable, Sequence

import attrs

from api_server.namespaces.resources import Project
from api_server.outbound.destinations import without_secrets
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.status_checks.service_queries import ProtectedBranch, Service


@attrs.frozen
class ServiceAudit:
    """The events of what a caller does to one check; `name` is the check's, the new one where that changes."""

    author: Author
    transaction: Transaction
    project: Project
    check_id: int
    name: str

    async def record(self, event_type: str, message: str, **details: str | int) -> None:
        await audit_trail.record(
            self.transaction,
            event_type,
            author=self.author,
            entity=self.project.entity,
            target_id=self.check_id,
            target_details=self.name,
            message=message,
            **details,
        )

    async def record_changes(self, before: Service, external_url: str, *, secret_changed: bool) -> None:
        """One event for each property; of URLs only what is no secret, of secrets only that they changed."""
        if self.name != before.name:
            details = {"change": "name", "from": before.name, "to": self.name}
            message = f"Changed name from {before.name} to {self.name}"
            await self.record("external_status_check_name_updated", message, **details)
        if external_url != before.external_url:
            old, new = without_secrets(before.external_url), without_secrets(external_url)
            details = {"change": "external url", "from": old, "to": new}
            message = f"Changed external url from {old} to {new}"
            await self.record("external_status_check_url_updated", message, **details)
        if secret_changed:
            message = f"Changed shared secret of {self.name} status check"
            await self.record("external_status_check_secret_updated", message, change="shared secret")

    async def record_scope(self, before: Sequence[ProtectedBranch], after: Sequence[ProtectedBranch]) -> None:
        """One event for each branch that the check is now limited to, or not any more."""
        for message in self._scope_messages({rule.name for rule in before}, {rule.name for rule in after}):
            await self.record("update_status_check", message)

    async def record_end_of_protection(self, branch: str, *, applies_to_all: bool) -> None:
        """The check was limited to `branch`, which is not protected any more."""
        change = "Added all branches to" if applies_to_all else f"Removed protected branch {branch} from"
        await self.record("update_status_check", f"{change} {self.name} status check")

    def _scope_messages(self, old: set[str], new: set[str]) -> Iterable[str]:
        if old and not new:
            yield f"Added all branches to {self.name} status check"
            return
        for number, branch in enumerate(sorted(new - old)):
            ending = " and removed all other branches from status check" if not old and number == 0 else ""
            yield f"Added protected branch {branch} to {self.name} status check{ending}"
        for branch in sorted(old - new):
            yield f"Removed protected branch {branch} from {self.name} status check"
