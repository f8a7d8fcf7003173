"""Pipelines that run at the moments of a cron expression: `schedules` keeps and runs them, `cron` says when."""
