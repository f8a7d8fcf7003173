"""Runners: the programs that run jobs, and all that they say to this service.

People look after runners in `handlers`. A runner program gets its token in `registration` and asks for work in
`job_requests`: `hand_out` chooses a job, `job_response` tells everything about it. Then it speaks for that job with the
job's own token (`job_token`): in `log_appends`, in `artifact_uploads`, and in the end in `outcome`.
"""
