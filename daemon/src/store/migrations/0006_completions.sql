-- The server's own id of a question that opens a URL, and when the server said that what was opened is done with.
ALTER TABLE elicitations ADD COLUMN server_elicitation_id TEXT;
ALTER TABLE elicitations ADD COLUMN completed INTEGER;
CREATE INDEX elicitations_uncompleted ON elicitations (namespace, server_id, server_elicitation_id)
    WHERE server_elicitation_id IS NOT NULL AND completed IS NULL;
