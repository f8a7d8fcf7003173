-- How many letters to people who have not asked for any somebody's doings have sent, or an address has got, in an hour.
-- depends: 0001_accounts_and_projects

CREATE TABLE letter_counts (
    counted text PRIMARY KEY, -- `user 7`, `address somebody@example.org`
    began_at timestamptz NOT NULL, -- of the hour: when the first of its letters was queued
    letters integer NOT NULL
);
CREATE INDEX letter_counts_began ON letter_counts (began_at);
