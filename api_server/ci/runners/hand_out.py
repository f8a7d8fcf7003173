"""Handing jobs out: exactly one runner gets a pending job, with everything that it needs to run it."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson
import structlog

from api_server.ci.config.predefined import Server
from api_server.ci.config.variables import Variable
from api_server.ci.identity import queries as identity_queries
from api_server.ci.identity.keys import opened
from api_server.ci.jobs.logs import MAX_SECRETS
from api_server.ci.pipelines import creation_queries, transitions
from api_server.ci.pipelines.creation import described_merge_request, described_project, described_user
from api_server.ci.pipelines.creation_queries import find_merge_request
from api_server.ci.pipelines.job_queries import plan_of
from api_server.ci.runners import job_queries
from api_server.ci.runners.access import Contact
from api_server.ci.runners.dependencies import MissingDependency, of_other_pipelines
from api_server.ci.runners.job_queries import EarlierJob, StartedJob, choose_job
from api_server.ci.runners.job_response import JobResponse
from api_server.ci.runners.queries import CallingRunner
from api_server.ci.variables.queries import TooManyBytes
from api_server.state.database import Database
from api_server.state.errors import Unavailable
from api_server.state.secrets import JOB_TOKEN, Vault, digest, new_token
from api_server.web.errors import forbidden
from common.concurrency import aside

log = structlog.get_logger(__name__)

#: Maximum number of a job's variables that are decrypted and expanded in the event loop.
_AT_ONCE = 200


class UserBlocked(Exception):
    """The user for whom the job runs has been blocked."""


@attrs.frozen
class HandOut:
    """Gives jobs to runners."""

    database: Database
    vault: Vault
    server: Server
    #: Whether the tag `*` of a runner stands for all tags.
    star_is_any: bool

    async def next_job(self, runner: CallingRunner, contact: Contact) -> dict[str, Any] | None:
        """Assign a job to the runner and return its description, or None if there is no job for it.

        If a job cannot be described, or the runner could not execute it, the job fails and the next one is
        tried. Raise 403 if the runner has been removed, or has another token by now.
        """
        while True:
            token = new_token(JOB_TOKEN)
            async with self.database.transaction() as transaction:
                if not await job_queries.hold_runner(transaction, runner.id, runner.token_digest):
                    raise forbidden()
                job_id = await choose_job(transaction, runner.id, star_is_any=self.star_is_any)
                if job_id is None:
                    return None
                started = await transitions.start_job(
                    transaction,
                    job_id,
                    runner_id=runner.id,
                    runner_manager_id=contact.manager_id,
                    token_digest=digest(token),
                    cancels_gracefully=contact.cancels_gracefully,
                )
            if (
                started is not None
                and (payload := await self._payload_of(job_id, runner, contact, token)) is not None
            ):
                return payload

    async def _payload_of(
        self, job_id: int, runner: CallingRunner, contact: Contact, token: str
    ) -> dict[str, Any] | None:
        try:
            response = await self._with_id_tokens(await self._gathered(job_id, runner, token))
            payload = await aside(len(response.given_variables) > _AT_ONCE, response.payload)
        except Unavailable:  # not the job's fault
            raise
        except TooManyBytes as problem:
            log.warning("a job has too many bytes of variables", job_id=job_id, reason=str(problem))
            await self._drop(job_id, "data_integrity_failure")
            return None
        except (MissingDependency, UserBlocked) as problem:
            blocked = isinstance(problem, UserBlocked)
            await self._drop(job_id, "user_blocked" if blocked else "missing_dependency_failure")
            return None
        except Exception:
            log.exception("a job cannot be handed out", job_id=job_id)
            await self._drop(job_id, "data_integrity_failure")
            return None
        if response.plan.release is not None and not contact.takes_steps:
            await self._drop(job_id, "runner_unsupported")
            return None
        debug_trace = _shows_secrets(payload["variables"])
        secrets = (*response.given_variables, *response.id_tokens)
        masked = sorted({variable.value for variable in secrets if variable.masked})
        if sum(len(value.encode()) for value in masked) > MAX_SECRETS:
            log.warning("a job has more bytes of masked variables than can be masked in logs", job_id=job_id)
            await self._drop(job_id, "data_integrity_failure")
            return None
        if debug_trace or masked:
            sealed = self.vault.encrypt(orjson.dumps(masked).decode()) if masked else None
            async with self.database.transaction() as transaction:
                await job_queries.note_secrets(
                    transaction, job_id, debug_trace=debug_trace, masked_values=sealed
                )
        # in a separate transaction: it locks the pipeline, which has to be locked before the job
        if response.job.pipeline_status != "running":
            async with self.database.transaction() as transaction:
                await transitions.refresh(transaction, response.job.pipeline_id)
        return payload

    async def _drop(self, job_id: int, failure_reason: str) -> None:
        async with self.database.transaction() as transaction:
            await transitions.advance(transaction, job_id, "drop", failure_reason=failure_reason)

    async def _gathered(self, job_id: int, runner: CallingRunner, token: str) -> JobResponse:
        job = await job_queries.started_job(self.database, job_id)
        plan = plan_of(job)
        earlier = await job_queries.dependencies(self.database, job, plan.dependencies)
        branch = None if job.tag else job.short_ref
        subject = await creation_queries.subject(self.database, job.project_id, job.user_id, branch)
        if subject.user_id is not None and not subject.active:
            raise UserBlocked
        response = JobResponse(
            server=self.server,
            token=token,
            job=job,
            plan=plan,
            runner=runner,
            project=described_project(subject),
            user=described_user(subject),
            merge_request=described_merge_request(
                await find_merge_request(self.database, job.merge_request_id)
            ),
            open_merge_requests=subject.open_merge_requests or "",
            earlier=earlier,
            given_variables=await self._given_variables(job, () if plan.cross_dependencies else earlier),
        )
        if not plan.cross_dependencies:
            return response
        variables = await aside(len(response.given_variables) > _AT_ONCE, response.variables)
        values = {variable["key"]: variable["value"] for variable in variables}
        earlier += await of_other_pipelines(self.database, job, plan, values)
        return attrs.evolve(
            response, earlier=earlier, given_variables=await self._given_variables(job, earlier)
        )

    async def _given_variables(self, job: StartedJob, earlier: Sequence[EarlierJob]) -> list[Variable]:
        rows = await job_queries.given_variables(self.database, job, earlier)
        return await aside(len(rows) > _AT_ONCE, lambda: [variable.opened(self.vault) for variable in rows])

    async def _with_id_tokens(self, response: JobResponse) -> JobResponse:
        job = response.job
        if not response.plan.id_tokens:
            return response
        roles = await identity_queries.find_roles(self.database, job.project_id, job.user_id)
        sealed = await identity_queries.signing_key(self.database)

        def sign() -> JobResponse:
            return response.with_id_tokens(roles, opened(sealed, self.vault))

        return await aside(True, sign)


def _shows_secrets(variables: list[dict[str, Any]]) -> bool:
    """Return whether the job's log will show everything that its shell executes."""
    debug_keys = {"CI_DEBUG_TRACE", "CI_DEBUG_SERVICES"}
    return any(variable["key"] in debug_keys and variable["value"] == "true" for variable in variables)
