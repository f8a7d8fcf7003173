-- depends: 0001_accounts_and_projects
-- What the storage edges have not been told of yet.

CREATE TABLE edges (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    url text NOT NULL UNIQUE,
    -- It has missed more than is kept, or nobody knows what it keeps: it has to forget everything.
    purge_everything boolean NOT NULL DEFAULT true,
    failing_since timestamptz -- since when the queue has not been able to tell it
);

-- One row for each edge and change, until the edge has been told. Without a foreign key, so that no change locks the
-- edge's row.
CREATE TABLE edge_purges (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    edge_id integer NOT NULL,
    keys text[] NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX edge_purges_edge ON edge_purges (edge_id, id);
