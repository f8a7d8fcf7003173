"""GitLab's `.gitlab-ci.yml` language: from a file's text to a plan of jobs, without side effects.

Read in this order: `pipeline` (the way from text to plan), `configuration` (reading and checking), `keywords`
(the language as tables), `plan` (the result), `predefined` (`CI_*` variables).
"""
