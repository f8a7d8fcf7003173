-- depends: 0005_operations

-- When the text of a note was changed last; updated_at moves when it is resolved, too.
ALTER TABLE notes ADD COLUMN edited_at timestamptz;
