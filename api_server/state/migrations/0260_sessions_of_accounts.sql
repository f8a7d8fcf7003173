-- depends: 0250_jobs_that_wait
-- A session ends with the right to be signed in, and does not come back with it: not only with another password, but
-- also when the account is blocked.
DROP TRIGGER end_sessions ON users;
CREATE TRIGGER end_sessions AFTER UPDATE OF password_hash, state ON users FOR EACH ROW
    WHEN ((OLD.password_hash, OLD.state) IS DISTINCT FROM (NEW.password_hash, NEW.state))
    EXECUTE FUNCTION end_sessions();
DELETE FROM sessions USING users WHERE users.id = sessions.user_id AND users.state <> 'active';
