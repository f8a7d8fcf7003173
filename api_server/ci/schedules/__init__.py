"""Pipeline schedules, which start pipelines at the times of a cron expression: `schedules` stores and runs
them, `cron` computes the times."""
