"""GitLab's `.gitlab-ci.yml` language: from a file's text to a plan of jobs, without touching anything else.

Read in this order: `pipeline` (the way from text to plan), `configuration` (reading and checking), `keywords`
(the language as tables), `plan` (the result); then `payload` (what a runner gets) and `predefined` (`CI_*`
variables).
"""
