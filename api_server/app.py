"""The only place where the parts of the API server are joined. The process and the tests both create it here."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from cachetools import LRUCache
from prometheus_client import CollectorRegistry

from api_server.accounts import emails, instance_settings, passwords, users
from api_server.accounts.instance_settings import outbound_policy
from api_server.api import ROUTES
from api_server.audit import chain as audit_chain
from api_server.ci.agents import agents
from api_server.ci.identity import handlers as identity
from api_server.ci.identity import keys as identity_keys
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
from api_server.code.quotas import QUOTAS, Quotas
from api_server.description import handlers as description
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.git.spawning import ChildLimits, set_limits
from api_server.invitations import changes
from api_server.merge_requests import merging, push_options, pushes, system_notes, version_handlers
from api_server.mirrors import running as mirrors
from api_server.namespaces import access_tokens, groups, member_endings, projects, removal
from api_server.namespaces.access import GROUPS, PROJECTS
from api_server.operations import figures, watch
from api_server.operations import tasks as operators_tasks
from api_server.outbound import edges, mail
from api_server.outbound.client import OUTGOING_POLICY, outgoing_session
from api_server.pages import site
from api_server.releases import changes as releases
from api_server.services import Run, Services
from api_server.settings import Settings
from api_server.state import backups, database, sweep
from api_server.state.database import Clock, LookupCache, system_clock
from api_server.state.object_store import open_objects
from api_server.state.queue import Queue
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
from api_server.web.context import SERVICES
from api_server.web.errors import api_errors, plain_errors
from api_server.web.rate_limits import THROTTLE, RateLimiter, Throttle
from api_server.web.request_data import BODY_MEMORY, BodyMemory, bounded_bodies
from api_server.web.request_log import REQUESTS, request_log
from common import operations
from common.client_address import behind_proxies, networks
from common.connections import Connections
from common.lifecycle import BACKGROUND, SHUTDOWN, BackgroundTasks, Shutdown
from common.serving import Endpoint, Serving

#: The prefix of the API's paths.
API = "/api/v4"
#: Bytes of a body that are read before a handler reads it; for a moment, twice as many.
READ_BUFFER = 64 * 1024


def create_app(settings: Settings, clock: Clock = system_clock) -> web.Application:
    """Return the API server. The database that `settings` name has to be migrated already, and its key has to exist."""
    registry = CollectorRegistry()
    log_requests, requests = request_log(registry)
    app = web.Application(
        middlewares=[
            *behind_proxies(networks(settings.trusted_proxies)),
            log_requests,
            *testing.middlewares(settings),
            plain_errors,
            edges.notify_edges,
            bounded_bodies,
        ],
        client_max_size=settings.body_limit,
    )
    services = app[SERVICES] = _services(settings, clock, registry)
    services[REQUESTS] = requests
    app[SHUTDOWN], app[BACKGROUND] = services.shutdown, services.background
    app.cleanup_ctx.extend(functools.partial(_running, run) for run in (*RUNNING, *services.runs, _worker))
    read_metrics = figures.setup_metrics(services, registry)
    checks = watch.readiness_checks(services)
    operations.setup(app, settings, registry, checks, read_metrics=read_metrics, summed=figures.SUMMED)
    app.add_subapp(API, _api())
    description.setup(services, ROUTES, urlsplit(settings.base_url).path)
    testing.setup(app, settings)
    for set_up_routes in (
        site.setup,
        identity.setup,
        git_http_handlers.setup,
        lfs_handlers.setup,
        static_objects.setup,
        site.setup_named,
    ):
        set_up_routes(app)
    route_index.setup_with_extra_slashes(app, API)
    return app


def _services(settings: Settings, clock: Clock, registry: CollectorRegistry) -> Services:
    """Return the services as far as they need no connection, joined with each other."""
    clock = testing.clock_of(settings, clock)
    set_limits(ChildLimits(settings.git_memory_limit, settings.git_cpu_limit))
    services = Services(
        settings=settings,
        clock=clock,
        vault=open_vault(settings.data_dir),
        objects=open_objects(
            settings.object_store_url,
            settings.data_dir,
            settings.disk_reserve,
            timeout=settings.object_store_timeout,
        ),
        queue=Queue(
            settings.database_url,
            settings.worker_timeout,
            listening_url=settings.unpooled_url,
            clock=clock,
            search_path=testing.search_path(settings),
        ),
        background=BackgroundTasks(registry),
        shutdown=Shutdown(),
    )
    services[BODY_MEMORY] = BodyMemory(settings.bodies_limit, settings.bodies_limit_per_address)
    services[REPOSITORIES] = Repositories(settings.data_dir / "repositories")
    services[QUOTAS] = Quotas(settings.repository_size_limit, services[REPOSITORIES])
    services[refs.UNSETTLED] = LRUCache(maxsize=10_000)
    services[LIMITS] = Limits(settings)
    services[JOBS_LIMIT] = RateLimiter("jobs", lambda: settings.jobs_rate_limit)
    services[THROTTLE] = Throttle()
    services[OUTGOING_POLICY] = outbound_policy(services)
    for set_up in PARTS:
        set_up(services)
    return services


def endpoint(settings: Settings) -> Endpoint:
    """Return the address on which the application listens, with its limits for connections."""
    return Endpoint(
        settings=settings,
        host=settings.host,
        port=settings.port,
        connections=Connections(settings),
        descriptor=settings.listen_fd,
    )


def served(app: web.Application, where: Endpoint) -> Serving:
    """Return the application at its endpoint. The application itself logs its requests."""
    return Serving(app=app, endpoint=where, options={"access_log": None, "read_bufsize": READ_BUFFER})


def _api() -> web.Application:
    api = web.Application(middlewares=[api_errors, entity_tags])
    for routes in ROUTES:
        routes.register(api)
    route_index.allow_other_sites(api)
    route_index.setup(api)
    return api


def _own_tasks(services: Services) -> None:
    """Add background tasks that combine several parts."""
    queue = services.queue

    async def remove_project_data(project_id: int) -> None:
        backups.not_during(services[REPOSITORIES].root)
        await removal.remove_pipelines(services.database, project_id)
        await services[REPOSITORIES].delete(project_id)
        await asyncio.to_thread(services[ARCHIVES].files.remove_project, project_id)
        await services.objects.delete_below(f"projects/{project_id}")

    async def settle_pushes() -> None:
        await refs.settle_leftovers(services, services.clock())

    async def sweep_objects() -> None:
        root = services[REPOSITORIES].root
        await sweep.sweep_daily(services.database, services.objects, services.settings.orphan_age, root)

    queue.add_periodic("sweep_objects", sweep.DAILY, sweep_objects)
    queue.add_periodic("settle_pushes", "* * * * *", settle_pushes)
    queue.add(removal.REMOVE_DATA, remove_project_data, attempts=5)


async def _database(services: Services) -> AsyncIterator[None]:
    settings = services.settings
    async with database.connect(
        settings.database_url,
        base_url=settings.base_url,
        clock=services.clock,
        size=settings.database_pool,
        statement_timeout=settings.database_statement_timeout,
        connect_timeout=settings.database_connect_timeout,
        prepares=settings.prepare_statements,
        replica_urls=settings.database_replica_urls,
    ) as connected:
        services.connected(connected)
        services[TOKENS] = LookupCache(connected)
        services[GROUPS] = LookupCache(connected)
        services[PROJECTS] = LookupCache(connected)
        services[instance_settings.CURRENT] = LookupCache(connected)
        services[identity_keys.PUBLIC_KEYS] = LookupCache(connected)
        yield


@contextlib.asynccontextmanager
async def joined(settings: Settings) -> AsyncIterator[Services]:
    """Yield the services, with their database, for operators' commands. The parts are joined, so that a change in one
    has its consequences in the others, but nothing listens and nothing runs by itself."""
    services = _services(settings, system_clock, CollectorRegistry())
    async with contextlib.asynccontextmanager(_database)(services):
        yield services


async def _edges(services: Services) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        services[edges.EDGES] = edges.Edges(services.settings, session, services.database)
        await services[edges.EDGES].list_own()
        yield


async def _administrator(services: Services) -> AsyncIterator[None]:
    await users.ensure_administrator(services, services.settings.root_token)
    yield


async def _leftovers(services: Services) -> AsyncIterator[None]:
    """Clean up what killed processes have left, before anything uses it."""
    await housekeeping.maintain_repositories(services, packs=False)
    await refs.settle_leftovers(services, services.clock())
    yield


async def _worker(services: Services) -> AsyncIterator[None]:
    works = services.settings.work
    async with (
        services.queue.working(services.background, services.shutdown) if works else contextlib.nullcontext()
    ):
        yield


async def _running(run: Run, app: web.Application) -> AsyncIterator[None]:
    """Start and end `run` with the application."""
    async with contextlib.asynccontextmanager(run)(app[SERVICES]):
        yield


#: Functions that join the parts with each other: each adds its listeners, its background work and its data to the
#: services.
PARTS: tuple[Callable[[Services], None], ...] = (
    _own_tasks,
    job_handlers.setup,
    uploads.setup,
    report_handlers.setup,
    archive_builds.setup,
    reading.setup,
    file_answers.setup,
    edges.setup,
    groups.setup,
    projects.setup,
    committing.setup,
    housekeeping.setup,
    tasks.setup,
    schedules.setup,
    identity_keys.setup,
    agents.setup,
    member_endings.setup,
    access_tokens.setup,
    audit_chain.setup,
    emails.setup,
    passwords.setup,
    changes.setup,
    pushes.setup,
    push_options.setup,
    merging.setup,
    version_handlers.setup,
    system_notes.setup,
    status_checks.setup,
    mirrors.setup,
    releases.setup,
    job_upkeep.setup,
    operators_tasks.setup,
    mail.setup_delivery,
    mail.setup_rates,
    pushes.setup_pipelines,
    figures.setup_samples,
)
#: Contexts that run while the server does. They start in this order and end in the opposite one. They start before
#: those of features and before the worker.
RUNNING: tuple[Run, ...] = (
    _database,
    context.follow_changed_rights,
    _edges,
    outgoing_session,
    _administrator,
    identity_keys.ensure_key,
    _leftovers,
    testing.snapshots,
    status_checks.deliveries,
    watch.watching,
)
