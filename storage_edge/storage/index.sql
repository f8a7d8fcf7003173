-- The tables of the disk tier's index. Processes that share a data directory share the index.
CREATE TABLE IF NOT EXISTS bodies (
    digest    TEXT PRIMARY KEY,           -- SHA-256 of the bytes, which is the name of the file
    size      INTEGER NOT NULL,
    used      REAL NOT NULL               -- last use, seconds since 1970; the oldest is evicted first
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bodies_by_use ON bodies (used);

CREATE TABLE IF NOT EXISTS responses (
    id        INTEGER PRIMARY KEY,
    target    TEXT NOT NULL,              -- target URI: origin and canonical request target
    selected  TEXT NOT NULL,              -- request headers that select this response (Vary)
    digest    TEXT NOT NULL REFERENCES bodies ON DELETE CASCADE,
    epoch     INTEGER NOT NULL,           -- number of purges before its request to the origin began
    stale     INTEGER NOT NULL DEFAULT 0, -- 1 after a soft purge
    response  TEXT NOT NULL,              -- JSON: status, fields, times, policy
    checksum  INTEGER NOT NULL,           -- CRC-32 of the other columns, except id and stale
    UNIQUE (target, selected)
);
CREATE INDEX IF NOT EXISTS responses_by_digest ON responses (digest);

CREATE TABLE IF NOT EXISTS response_keys (
    key       TEXT NOT NULL,              -- surrogate key
    response  INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE,
    PRIMARY KEY (key, response)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS response_keys_by_response ON response_keys (response);

-- The newest purge that has been carried out on these rows. Later ones are looked up in the purge log.
CREATE TABLE IF NOT EXISTS purged (epoch INTEGER NOT NULL);
INSERT INTO purged SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM purged);

-- Bodies whose files are to be deleted before the transaction ends.
CREATE TABLE IF NOT EXISTS garbage (digest TEXT PRIMARY KEY) WITHOUT ROWID;

-- The total size of all bodies, so that the limit can be checked without reading all rows.
CREATE TABLE IF NOT EXISTS totals (bytes INTEGER NOT NULL);
INSERT INTO totals SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM totals);
CREATE TRIGGER IF NOT EXISTS body_added AFTER INSERT ON bodies
BEGIN UPDATE totals SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS body_removed AFTER DELETE ON bodies
BEGIN
    UPDATE totals SET bytes = bytes - OLD.size;
    INSERT OR IGNORE INTO garbage VALUES (OLD.digest);
END;

-- The number of responses, so that nothing has to count them.
CREATE TABLE IF NOT EXISTS counts (responses INTEGER NOT NULL);
INSERT INTO counts SELECT (SELECT count(*) FROM responses) WHERE NOT EXISTS (SELECT 1 FROM counts);
CREATE TRIGGER IF NOT EXISTS response_counted AFTER INSERT ON responses
BEGIN UPDATE counts SET responses = responses + 1; END;

-- How often the responses under a target were used since the first one was stored. Processes add to it now and then.
CREATE TABLE IF NOT EXISTS hits (
    target    TEXT PRIMARY KEY,
    count     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS response_uncounted AFTER DELETE ON responses
BEGIN
    UPDATE counts SET responses = responses - 1;
    DELETE FROM hits WHERE target = OLD.target
        AND NOT EXISTS (SELECT 1 FROM responses WHERE target = OLD.target);
END;

-- Remove bodies that no response uses any more.
CREATE TRIGGER IF NOT EXISTS response_removed AFTER DELETE ON responses
WHEN NOT EXISTS (SELECT 1 FROM responses WHERE digest = OLD.digest)
BEGIN DELETE FROM bodies WHERE digest = OLD.digest; END;
CREATE TRIGGER IF NOT EXISTS response_moved AFTER UPDATE OF digest ON responses
WHEN OLD.digest <> NEW.digest AND NOT EXISTS (SELECT 1 FROM responses WHERE digest = OLD.digest)
BEGIN DELETE FROM bodies WHERE digest = OLD.digest; END;
