"""The background work of invitations: their mails, reminders, and clearing away what nobody answers."""

import datetime

from aiohttp import web

from api_server.invitations import changes, mails, queries, reminders
from api_server.outbound.mail import ATTEMPTS
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE

KEPT = datetime.timedelta(days=90)


def setup(app: web.Application) -> None:
    queue = app[QUEUE]

    async def mail_invitation(invitation_id: int, reminder: int) -> None:
        await mails.mail_invitation(app, invitation_id, reminder)

    async def remind() -> None:
        await queue_reminders(app)

    async def clear_away() -> None:
        async with app[DATABASE].transaction() as transaction:
            await changes.clear_away(transaction, KEPT)

    queue.add(mails.TASK, mail_invitation, attempts=ATTEMPTS)
    queue.add_periodic("clear_away_invitations", "11 * * * *", clear_away)
    queue.add_periodic("remind_of_invitations", "23 * * * *", remind)


async def queue_reminders(app: web.Application) -> None:
    """Queues the reminder of each invitation that is due; after a pause of the service only the latest one."""
    async with app[DATABASE].transaction() as transaction:
        today = transaction.now.date()
        for invitation in await queries.lock_unanswered(transaction, reminders.MOST):
            due = reminders.due(invitation.created_at.date(), invitation.expires_at, today)
            if due > invitation.reminders_sent:
                await queries.note_reminder(transaction, invitation.id, due)
                await mails.queue_invitation(transaction, invitation.id, due)
