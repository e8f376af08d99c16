-- Sessions of legacy servers over HTTP, to go on with after a restart. `sealed` holds the session id, the version and the
-- server's answer to the handshake.
CREATE TABLE sessions (
    namespace TEXT NOT NULL,
    server_id TEXT NOT NULL,
    sealed    BLOB NOT NULL,
    PRIMARY KEY (namespace, server_id)
) STRICT;
