-- depends: 0031_status_checks
-- Deliveries of the whole instance by what has become of them; delivered ones are found by their id.

CREATE INDEX status_check_deliveries_queued ON status_check_deliveries (id) WHERE status = 'queued';
CREATE INDEX status_check_deliveries_failed ON status_check_deliveries (id) WHERE status = 'failed';
