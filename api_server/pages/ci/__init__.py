"""Pages of pipelines and jobs."""
