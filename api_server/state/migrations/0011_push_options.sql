-- depends: 0010_list_indices
-- What was said with a push (`git push -o`), encrypted, until its consequences are decided.
ALTER TABLE pushes ADD COLUMN options bytea;
