"""Pipelines that run at the moments of a cron expression: what is kept of them (`handlers`, `changes`), when they run
(`cron`), and their running (`runs`)."""
