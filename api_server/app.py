"""The one place where the parts of the API server are joined; the process and the tests make it here alike."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from cachetools import LRUCache
from prometheus_client import CollectorRegistry

from api_server.accounts import emails, instance_settings, passwords, users
from api_server.accounts.instance_settings import outbound_policy
from api_server.accounts.users import USER_LISTENERS
from api_server.api import ROUTES
from api_server.audit import chain as audit_chain
from api_server.ci.agents import agents
from api_server.ci.jobs import report_handlers
from api_server.ci.jobs import upkeep as job_upkeep
from api_server.ci.jobs.handlers import JOBS_LIMIT
from api_server.ci.pipelines import tasks
from api_server.ci.runners import job_handlers, uploads
from api_server.ci.schedules import schedules
from api_server.code import (
    committing,
    file_answers,
    git_http_handlers,
    housekeeping,
    lfs_handlers,
    reading,
    refs,
)
from api_server.code.protected_refs import END_OF_PROTECTION_LISTENERS
from api_server.code.quotas import QUOTAS, Quotas
from api_server.description import handlers as description
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.git.spawning import ChildLimits, set_limits
from api_server.invitations import changes as invitations
from api_server.merge_requests import merging, push_options, pushes, system_notes, version_handlers
from api_server.merge_requests.changes import MERGE_REQUEST_LISTENERS
from api_server.mirrors import running as mirrors
from api_server.namespaces import access_tokens, groups, member_endings, projects, removal
from api_server.namespaces.access import GROUPS, PROJECTS
from api_server.namespaces.projects import CREATION_LISTENERS, DEFAULT_BRANCH_LISTENERS
from api_server.operations import figures, watch
from api_server.operations import tasks as operators_tasks
from api_server.outbound import edges, mail
from api_server.outbound.client import OUTGOING_POLICY, outgoing_session
from api_server.pages import site
from api_server.releases import changes as releases
from api_server.settings import Settings
from api_server.state import backups, database, sweep
from api_server.state.database import Clock, LookupCache, system_clock
from api_server.state.failures import FAILURES, Failures
from api_server.state.object_store import open_objects
from api_server.state.objects import OBJECTS
from api_server.state.queue import QUEUE, Queue
from api_server.state.secrets import open_vault
from api_server.static_objects import archive_builds
from api_server.static_objects import handlers as static_objects
from api_server.static_objects.access import LIMITS, Limits
from api_server.static_objects.archive_builds import ARCHIVES
from api_server.status_checks import dispatcher as status_checks
from api_server.testing import joining as testing
from api_server.web import context, route_index
from api_server.web.answers import entity_tags
from api_server.web.auth import TOKENS
from api_server.web.context import CLOCK, DATABASE, SETTINGS, VAULT
from api_server.web.errors import api_errors, plain_errors
from api_server.web.rate_limits import THROTTLE, RateLimiter, Throttle
from api_server.web.request_data import HELD, HeldBodies, bounded_bodies
from api_server.web.request_log import REQUESTS, request_log
from common import operations
from common.client_address import behind_proxies, networks
from common.connections import Connections
from common.lifecycle import BACKGROUND, SHUTDOWN, BackgroundTasks, Shutdown
from common.serving import Endpoint, Serving

#: The prefix of the API's paths.
API = "/api/v4"
#: Bytes that are read of a body before somebody wants it; twice as many for a moment.
READ_BUFFER = 64 * 1024


def create_app(settings: Settings, clock: Clock = system_clock) -> web.Application:
    """The API server. The database that `settings` names has to be migrated already, and its key to be there."""
    registry = CollectorRegistry()
    log_requests, requests = request_log(registry)
    app = web.Application(
        middlewares=[
            *behind_proxies(networks(settings.trusted_proxies)),
            log_requests,
            *testing.middlewares(settings),
            plain_errors,
            edges.tell_edges,
            bounded_bodies,
        ],
        client_max_size=settings.body_limit,
    )
    app[SHUTDOWN] = Shutdown()
    app[REQUESTS] = requests
    app[BACKGROUND] = BackgroundTasks(registry)
    _furnish(app, settings, clock)
    app.cleanup_ctx.extend(
        [
            _database,
            context.hear_of_changed_rights,
            _edges,
            outgoing_session,
            _administrator,
            _leftovers,
            testing.snapshots,
            status_checks.deliveries,
            watch.watching,
            _worker,
        ]
    )
    read_metrics = figures.setup_metrics(app, registry)
    checks = watch.readiness_checks(app)
    operations.setup(app, settings, registry, checks, read_metrics=read_metrics, summed=figures.SUMMED)
    app.add_subapp(API, _api())
    description.setup(app, ROUTES, urlsplit(settings.base_url).path)
    testing.setup(app, settings)
    site.setup(app)
    git_http_handlers.setup(app)
    lfs_handlers.setup(app)
    static_objects.setup(app)
    job_handlers.setup(app)
    uploads.setup(app)
    report_handlers.setup(app)
    site.setup_named(app)
    route_index.setup_with_spare_slashes(app, API)
    _add_tasks(app)
    return app


def _furnish(app: web.Application, settings: Settings, clock: Clock) -> None:
    """What handlers find in the application, as far as it needs no connection."""
    app[HELD] = HeldBodies(settings.bodies_limit, settings.bodies_limit_per_address)
    app[SETTINGS] = settings
    app[CLOCK] = clock = testing.clock_of(app, clock)
    app[VAULT] = open_vault(settings.data_dir)
    app[REPOSITORIES] = Repositories(settings.data_dir / "repositories")
    app[OBJECTS] = open_objects(
        settings.object_store_url,
        settings.data_dir,
        settings.disk_reserve,
        timeout=settings.object_store_timeout,
    )
    set_limits(ChildLimits(settings.git_memory_limit, settings.git_cpu_limit))
    app[QUOTAS] = Quotas(settings.repository_size_limit, app[REPOSITORIES])
    app[QUEUE] = Queue(
        settings.database_url,
        settings.worker_timeout,
        listening_url=settings.unpooled_url,
        clock=clock,
        search_path=testing.search_path(settings),
    )
    app[USER_LISTENERS] = []
    app[CREATION_LISTENERS] = []
    app[DEFAULT_BRANCH_LISTENERS] = []
    app[refs.REF_LISTENERS] = []
    app[refs.PUSH_OPTION_LISTENERS] = []
    app[END_OF_PROTECTION_LISTENERS] = []
    app[refs.UNSETTLED] = LRUCache(maxsize=10_000)
    app[LIMITS] = Limits(settings)
    archive_builds.setup(app)
    reading.setup(app, settings)
    file_answers.setup(app)
    app[JOBS_LIMIT] = RateLimiter("jobs", lambda: settings.jobs_rate_limit)
    app[THROTTLE] = Throttle()
    app[MERGE_REQUEST_LISTENERS] = []
    app[OUTGOING_POLICY] = outbound_policy(app)


def endpoint(settings: Settings) -> Endpoint:
    """Where the application listens."""
    return Endpoint(
        settings=settings,
        host=settings.host,
        port=settings.port,
        connections=Connections(settings),
        descriptor=settings.listen_fd,
    )


def served(app: web.Application, where: Endpoint) -> Serving:
    """The application at its endpoint; requests are logged by the application itself."""
    return Serving(app=app, endpoint=where, options={"access_log": None, "read_bufsize": READ_BUFFER})


def _api() -> web.Application:
    api = web.Application(middlewares=[api_errors, entity_tags])
    for routes in ROUTES:
        routes.register(api)
    route_index.allow_other_sites(api)
    route_index.setup(api)
    return api


def _add_tasks(app: web.Application) -> None:
    queue = app[QUEUE]

    async def remove_project_data(project_id: int) -> None:
        backups.not_during(app[REPOSITORIES].root)
        await removal.remove_pipelines(app[DATABASE], project_id)
        await app[REPOSITORIES].delete(project_id)
        await asyncio.to_thread(app[ARCHIVES].files.remove_project, project_id)
        await app[OBJECTS].delete_below(f"projects/{project_id}")

    async def settle_pushes() -> None:
        await refs.settle_leftovers(app, app[CLOCK]())

    async def sweep_objects() -> None:
        root = app[REPOSITORIES].root
        await sweep.sweep_daily(app[DATABASE], app[OBJECTS], app[SETTINGS].orphan_age, root)

    queue.add_periodic("sweep_objects", sweep.DAILY, sweep_objects)
    queue.add_periodic("settle_pushes", "* * * * *", settle_pushes)
    edges.setup(app, app[SETTINGS])
    queue.add(removal.REMOVE_DATA, remove_project_data, attempts=5)
    groups.setup(app)
    projects.setup(app)
    committing.setup(app)
    housekeeping.setup(app)
    tasks.setup(app)
    schedules.setup(app)
    agents.setup(app)
    member_endings.setup(app)
    access_tokens.setup(app)
    audit_chain.setup(app)
    mail.setup_delivery(app)
    mail.setup_rates(app)
    emails.setup(app)
    passwords.setup(app)
    invitations.setup(app)
    pushes.setup(app)
    push_options.setup(app)
    merging.setup(app)
    version_handlers.setup(app)
    system_notes.setup(app)
    pushes.setup_pipelines(app)
    status_checks.setup(app)
    mirrors.setup(app)
    releases.setup(app)
    job_upkeep.setup(app)
    operators_tasks.setup(app)
    figures.setup_samples(app)


async def _database(app: web.Application) -> AsyncIterator[None]:
    settings = app[SETTINGS]
    async with database.connect(
        settings.database_url,
        base_url=settings.base_url,
        clock=app[CLOCK],
        size=settings.database_pool,
        statement_timeout=settings.database_statement_timeout,
        connect_timeout=settings.database_connect_timeout,
        prepares=settings.prepare_statements,
        replica_urls=settings.database_replica_urls,
    ) as connected:
        app[DATABASE] = connected
        app[FAILURES] = app[QUEUE].failures = Failures(connected)
        app[TOKENS] = LookupCache(connected)
        app[GROUPS] = LookupCache(connected)
        app[PROJECTS] = LookupCache(connected)
        app[instance_settings.CURRENT] = LookupCache(connected)
        yield


@contextlib.asynccontextmanager
async def joined(settings: Settings) -> AsyncIterator[web.Application]:
    """The application for operators' commands, with its database: its parts know of each other, so that what one does
    has its consequences in the others, but nothing listens and nothing runs by itself."""
    app = create_app(settings)
    async with contextlib.asynccontextmanager(_database)(app):
        yield app


async def _edges(app: web.Application) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        app[edges.EDGES] = edges.Edges(app[SETTINGS], session, app[DATABASE])
        await app[edges.EDGES].list_own()
        yield


async def _administrator(app: web.Application) -> AsyncIterator[None]:
    await users.ensure_administrator(app, app[SETTINGS].root_token)
    yield


async def _leftovers(app: web.Application) -> AsyncIterator[None]:
    """What processes that were killed have left, before anybody meets it."""
    await housekeeping.look_after(app, packs=False)
    await refs.settle_leftovers(app, app[CLOCK]())
    yield


async def _worker(app: web.Application) -> AsyncIterator[None]:
    works = app[SETTINGS].work
    async with app[QUEUE].working(app[BACKGROUND], app[SHUTDOWN]) if works else contextlib.nullcontext():
        yield
