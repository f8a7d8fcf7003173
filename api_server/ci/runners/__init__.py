"""Runners, the programs that run jobs, and their protocol with this service.

In `handlers` people manage runners, and a runner program gets its token. In `job_handlers` it asks for work:
`hand_out` chooses a job, and `job_response` describes it. Afterwards the runner uses the job's own token
(`access`) to add to the log, to upload artifacts (`uploads`), and to report how the job ended.
"""
