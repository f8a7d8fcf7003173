-- depends: 0035_deliveries_in_order
-- Which head of the target git was asked about, so that an answer is not kept when the target has moved meanwhile. Null
-- until it is first known to have moved.
ALTER TABLE merge_requests ADD COLUMN target_sha text;
