"""Jobs' logs: appended durably while a job runs, one object afterwards.

A running job's log is rows of `job_log_chunks`. Each append is one transaction: the bytes, the log's new size and
its checksum are there together or not at all, so that what has been acknowledged survives a crash and is there once,
and any process can take the next append. When the job is over, a task moves the log into the object store, where
bytes are cheap, and deletes the rows.
"""
