-- What keeps the list of all merge requests cheap in the orders that it can be asked for, and of somebody's own.
-- depends: 0012_more_list_indices

CREATE INDEX merge_requests_updated_of_all ON merge_requests (updated_at, id);
DROP INDEX merge_requests_author;
CREATE INDEX merge_requests_author ON merge_requests (author_id, id);
