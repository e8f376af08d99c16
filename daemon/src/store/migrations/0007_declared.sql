-- Whether a server is in the configuration of the daemon, and so nothing that apps can change.
ALTER TABLE servers ADD COLUMN declared INTEGER NOT NULL DEFAULT 0;
