-- Who began a call, for the audit log: a call may outlive its caller, and the daemon.
ALTER TABLE calls ADD COLUMN began TEXT;
