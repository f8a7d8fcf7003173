-- depends: 0035_deliveries_in_order
-- A check without protected branches applies to all branches, also when those that it was limited to have gone. The
-- functions that read the column are made again after the migrations.

DROP FUNCTION IF EXISTS status_check_applies(external_status_checks, text) CASCADE;
ALTER TABLE external_status_checks DROP COLUMN all_branches;
