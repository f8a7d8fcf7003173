-- depends: 0231_notices_of_rights
-- Servers may list different edges: what any of them lists is told. When a server that runs has listed it last.
ALTER TABLE edges ADD COLUMN listed_at timestamptz NOT NULL DEFAULT '-infinity';
