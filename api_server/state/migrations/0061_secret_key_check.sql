-- By which a process knows whether the key in its data directory is the one that this database's secrets are under.
-- depends: 0001_accounts_and_projects

CREATE TABLE secret_key_check (
    there_is_one boolean PRIMARY KEY CHECK (there_is_one),
    -- A digest under the key, of which it says nothing.
    digest bytea NOT NULL
);
