-- What moves a lease without waiting for its running steps, what planners and people want, and what tells that the
-- database went back. Times and hashed texts are as in the first migration.

ALTER TABLE lease
	ADD COLUMN misrouted    bigint NOT NULL DEFAULT 0,
	ADD COLUMN generation   bigint NOT NULL DEFAULT 0, -- of the Kafka group that claimed it; 0: it was acquired
	ADD COLUMN passed_to    text NOT NULL DEFAULT '',  -- who alone may acquire it
	ADD COLUMN passed_until bigint NOT NULL DEFAULT 0,
	ADD COLUMN passed_by    text NOT NULL DEFAULT '',  -- who passed it on last, and under which epoch: a Pass whose answer
	ADD COLUMN passed_epoch bigint NOT NULL DEFAULT 0; -- was lost is made again

-- A step that its worker may still finish after its partition moved on. Only who has the lease's row locked adds one,
-- commits by one, or removes one that has expired.
CREATE TABLE carried (
	lease_id integer NOT NULL,
	position bigint NOT NULL,  -- offset of its record
	epoch    bigint NOT NULL,  -- that it was begun under
	worker   text NOT NULL,
	subject  bytea NOT NULL,
	taken    bigint NOT NULL,
	expires  bigint NOT NULL,  -- as of then; a later beat of its worker counts instead
	PRIMARY KEY (lease_id, position)
);
CREATE INDEX carried_worker ON carried (worker);

-- history is what the row's event is found by there; null: it has no place in one. alone: it was put back after its
-- place was taken.
ALTER TABLE backlog
	ADD COLUMN released boolean NOT NULL DEFAULT false, -- a dead record that is to be handled again
	ADD COLUMN alone    boolean NOT NULL DEFAULT false,
	ADD COLUMN arrived  bigint NOT NULL DEFAULT 0,
	ADD COLUMN history  bytea;
CREATE INDEX backlog_dead ON backlog (lease_id, position) WHERE dead;
CREATE INDEX backlog_head ON backlog (lease_id, subject_key, sequence, position) WHERE dead AND NOT released;
CREATE INDEX backlog_released ON backlog (lease_id, subject_key) WHERE released;

-- A history that is to be applied again from a log time on has last = -1, and that time; it begins at whatever event of
-- then or later comes first. Else lease and time are its last event's.
ALTER TABLE history
	ADD COLUMN lease_id integer NOT NULL DEFAULT 0,
	ADD COLUMN log_time bigint NOT NULL DEFAULT 0;

-- Records that were given up and that a person hasn't settled yet, in the backlog or not.
CREATE TABLE dead (
	lease_id integer NOT NULL,
	position bigint NOT NULL,
	PRIMARY KEY (lease_id, position)
);
INSERT INTO dead SELECT lease_id, position FROM backlog WHERE dead;

-- Aggregates about which a person has decided, until the lease's owner looks at them.
CREATE TABLE ask (
	lease_id    integer NOT NULL,
	subject_key uuid NOT NULL,
	subject     bytea NOT NULL,
	PRIMARY KEY (lease_id, subject_key)
);

CREATE TABLE plan (
	group_name text NOT NULL,
	topic_id   uuid NOT NULL,
	part       integer NOT NULL,
	worker     text NOT NULL,
	PRIMARY KEY (group_name, topic_id, part)
);

CREATE TABLE control (
	group_name text PRIMARY KEY,
	paused     boolean NOT NULL,
	reason     text NOT NULL,
	at         bigint NOT NULL -- since when it's so
);

CREATE TABLE route (
	topic_id uuid PRIMARY KEY,
	topic    text NOT NULL,
	slots    integer NOT NULL
);

ALTER TABLE worker
	ADD COLUMN steps  bigint NOT NULL DEFAULT 0,
	ADD COLUMN memory bigint NOT NULL DEFAULT 0;

-- A call under a carried step's fence may be in the air though its lease has moved on. -1: from before this migration.
ALTER TABLE recorded ADD COLUMN position bigint NOT NULL DEFAULT -1;

-- A token that only rises; processes remember how far it was.
CREATE TABLE tide (
	one   integer PRIMARY KEY CHECK (one = 1),
	token bigint NOT NULL,
	at    bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO tide VALUES (1, 0, 0);

-- On which servers the ledger has lived: another system or timeline is a fail-over, a restored backup or a copy.
CREATE TABLE life (
	since    bigint PRIMARY KEY,
	system   text NOT NULL, -- '' where the role may not ask
	timeline text NOT NULL,
	token    bigint NOT NULL
);
