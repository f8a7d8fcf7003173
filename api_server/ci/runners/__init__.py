"""Runners: the programs that run jobs, and all that they say to this service.

In `handlers` people look after runners, and a runner program gets its token. In `job_handlers` it asks for work:
`hand_out` chooses a job, `job_response` tells everything about it. Then it speaks for that job with the job's own token
(`access`): it adds to the log, brings artifacts (`uploads`), and says how the job ended.
"""
