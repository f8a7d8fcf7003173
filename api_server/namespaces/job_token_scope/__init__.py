"""Which projects' jobs reach a project with their tokens; the rule itself is `lets_in_jobs_of` of
`state/rights_functions.sql`, which `projects.access.visible_project` asks."""
