-- A pending call knows the lease, and its epoch, under which it was begun: another event's call to the same address
-- must not take its place while another worker may have it in the air. 0: from before this migration.
ALTER TABLE swarmlog_recorded ADD COLUMN lease_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_recorded ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

-- Recorded answers go by age, but not while their event waits in the backlog: the row names its event as the record
-- does. NULL: from before this migration.
ALTER TABLE swarmlog_backlog ADD COLUMN event BLOB;
CREATE INDEX swarmlog_backlog_event ON swarmlog_backlog (event) WHERE event IS NOT NULL;
CREATE INDEX swarmlog_recorded_age ON swarmlog_recorded (time) WHERE inference_id IS NOT NULL;
