-- depends: 0031_status_checks
-- What is due of one receiver is taken in the order of (next_attempt_at, id). Much of it became due at one moment: the
-- state of all open merge requests, say.
DROP INDEX status_check_deliveries_due;
CREATE INDEX status_check_deliveries_due ON status_check_deliveries (check_id, next_attempt_at, id)
    WHERE next_attempt_at IS NOT NULL; -- what to send, receiver by receiver
-- Nothing asks for the soonest of all receivers.
DROP INDEX status_check_deliveries_soonest;
