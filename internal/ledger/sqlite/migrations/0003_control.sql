-- Hand-over: a lease is passed on while steps of it still run. Each of those has a carried row, which fences its
-- commit; a lease that was passed on is kept for its next owner for a while.
ALTER TABLE swarmlog_lease ADD COLUMN misrouted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_lease ADD COLUMN generation INTEGER NOT NULL DEFAULT 0; -- of the Kafka group that claimed it; 0: it was acquired
ALTER TABLE swarmlog_lease ADD COLUMN passed_to TEXT NOT NULL DEFAULT '';
ALTER TABLE swarmlog_lease ADD COLUMN passed_until INTEGER NOT NULL DEFAULT 0;

CREATE TABLE swarmlog_carried (
	lease_id INTEGER NOT NULL,
	position INTEGER NOT NULL,
	subject  TEXT NOT NULL,
	worker   TEXT NOT NULL,
	epoch    INTEGER NOT NULL, -- under which the step was begun
	expires  INTEGER NOT NULL,
	PRIMARY KEY (lease_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX swarmlog_carried_worker ON swarmlog_carried (worker);

-- A pending call knows its record, since a carried step may go on calling. -1: from before this migration.
ALTER TABLE swarmlog_recorded ADD COLUMN position INTEGER NOT NULL DEFAULT -1;

ALTER TABLE swarmlog_worker ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_worker ADD COLUMN memory INTEGER NOT NULL DEFAULT 0;

CREATE TABLE swarmlog_plan (
	group_name TEXT NOT NULL,
	topic_id   BLOB NOT NULL,
	part       INTEGER NOT NULL,
	worker     TEXT NOT NULL,
	PRIMARY KEY (group_name, topic_id, part)
) STRICT, WITHOUT ROWID;

CREATE TABLE swarmlog_control (
	group_name TEXT PRIMARY KEY,
	paused     INTEGER NOT NULL,
	reason     TEXT NOT NULL,
	time       INTEGER NOT NULL -- since when it's so
) STRICT, WITHOUT ROWID;

-- How many slots the keys of a topic have.
CREATE TABLE swarmlog_route (
	topic_id   BLOB PRIMARY KEY,
	topic      TEXT NOT NULL,
	partitions INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A dead record is released to be handled again; one that was put back alone has taken its place in its history.
ALTER TABLE swarmlog_backlog ADD COLUMN released INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_backlog ADD COLUMN alone INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_backlog ADD COLUMN source TEXT NOT NULL DEFAULT ''; -- of the event
ALTER TABLE swarmlog_backlog ADD COLUMN arrived INTEGER NOT NULL DEFAULT 0;
CREATE INDEX swarmlog_backlog_dead ON swarmlog_backlog (lease_id, position) WHERE dead = 1;
CREATE INDEX swarmlog_backlog_head ON swarmlog_backlog (lease_id, subject, sequence, position, released) WHERE dead = 1;
CREATE INDEX swarmlog_backlog_released ON swarmlog_backlog (lease_id, subject) WHERE released = 1;

-- What people have decided about, and the lease's owner hasn't answered yet.
CREATE TABLE swarmlog_ask (
	lease_id INTEGER NOT NULL,
	subject  TEXT NOT NULL,
	PRIMARY KEY (lease_id, subject)
) STRICT, WITHOUT ROWID;

-- Dead records that still wait for a person: neither handled since nor discarded, dismissed or rewound over. So none is
-- put back that was handled, or leaves the count of the dead twice.
CREATE TABLE swarmlog_dead (
	lease_id INTEGER NOT NULL,
	position INTEGER NOT NULL,
	PRIMARY KEY (lease_id, position)
) STRICT, WITHOUT ROWID;
INSERT INTO swarmlog_dead SELECT lease_id, position FROM swarmlog_backlog WHERE dead = 1;

-- A history that is to be applied again from some time on begins at whatever event comes first: last is -1 then, and
-- log_time that time. Else they are the last event's. lease_id 0: from before this migration.
ALTER TABLE swarmlog_cursor ADD COLUMN lease_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE swarmlog_cursor ADD COLUMN log_time INTEGER NOT NULL DEFAULT 0;
