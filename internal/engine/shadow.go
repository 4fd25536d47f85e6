package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// A shadow is a new version of an agent that runs beside the old one, the primary: it reads the same topics as a group of
// its own, and nothing of what it does takes effect. Its SQL (Step.Tx) isn't run, its Setup neither; what it emits isn't
// published, but noted by digest under the id that it would have if the primary had emitted it; what dies is noted and
// makes no letter. A second agent, the comparer, reads what the primary did publish and notes that beside it.
// ReportShadow says how far they agree.
//
// Model calls of a shadow are real calls, paid and recorded under its own name, unless answers are reused: then it's
// answered from the cache by address wherever it asks the same as the primary.
//
// What a shadow notes grows by a row or two an event, until ForgetShadow. A new group begins at the log's start; to
// compare from now on, rewind it to now while it's stopped.

// shadowTable holds, by shadow and id of an emission, what either of the two emitted.
const shadowTable = `CREATE TABLE IF NOT EXISTS shadow_emission (
	shadow TEXT NOT NULL, id TEXT NOT NULL,
	event_source TEXT NOT NULL DEFAULT '', event_id TEXT NOT NULL DEFAULT '', idx BIGINT NOT NULL DEFAULT 0,
	read_topic TEXT NOT NULL DEFAULT '', read_partition BIGINT NOT NULL DEFAULT 0, read_offset BIGINT NOT NULL DEFAULT 0,
	subject TEXT NOT NULL DEFAULT '', type TEXT NOT NULL DEFAULT '',
	mine TEXT NOT NULL DEFAULT '', mine_topic TEXT NOT NULL DEFAULT '',
	silent BIGINT NOT NULL DEFAULT 0, failure TEXT NOT NULL DEFAULT '',
	theirs TEXT NOT NULL DEFAULT '', theirs_topic TEXT NOT NULL DEFAULT '',
	at BIGINT NOT NULL, PRIMARY KEY (shadow, id))`

func setupShadow(ctx context.Context, tx ledger.Tx) error {
	_, err := tx.Exec(ctx, shadowTable)
	return err
}

// Shadow makes the agents that run a version of an agent beside it: the shadow, and where there's anything to compare the
// comparer. The shadow is called as the version is, or, where that isn't a name of its own, NAME.shadow.
func Shadow(of, version Agent) ([]Agent, error) {
	if of.Name == "" || version.Handle == nil {
		return nil, errors.New("shadow: the agent needs a name, and its version a handler")
	}
	name := version.Name
	if name == "" || name == of.Name {
		name = of.Name + ".shadow"
	}
	if len(version.Reads) == 0 {
		version.Reads = of.Reads
	}
	if !slices.Equal(slices.Sorted(slices.Values(version.Reads)), slices.Sorted(slices.Values(of.Reads))) {
		return nil, fmt.Errorf("shadow %s reads %v, and %s reads %v: let them read the same", name, version.Reads, of.Name, of.Reads)
	}
	if len(version.Emits) == 0 {
		version.Emits = of.Emits
	}
	s := &shadow{name: name, primary: of.Name, handle: version.Handle, attempts: version.Limits.Attempts}
	setDefault(&s.attempts, defaultAttempts)
	version.Name, version.Handle, version.Setup, version.OnDead, version.shadow = name, s.run, setupShadow, Skip, true
	agents := []Agent{version}
	var targets []string
	for _, t := range append(slices.Clone(of.Emits), version.Emits...) {
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	if len(targets) > 0 {
		agents = append(agents, Agent{Name: name + ".compare", Reads: targets, Handle: s.compare, Setup: setupShadow, OnDead: Skip, shadow: true})
	}
	return agents, nil
}

type shadow struct {
	name     string
	primary  string
	handle   Handler
	attempts int
}

// noted is an emission of the shadow.
type noted struct {
	id, topic, subject, typ, digest string
}

// run runs the version's handler and notes what it would have emitted, in place of all that it wants done.
func (d *shadow) run(ctx context.Context, e event.Event, s *Step) error {
	err := safely(func() error { return d.handle(ctx, e, s) })
	if err == nil {
		err = s.err
	}
	var all []noted
	if err == nil && s.outcome == 0 {
		all, err = d.emitted(e, s.emits)
	}
	if err != nil && !d.ends(err, s.failures) {
		return err
	}
	failure := ""
	if err != nil {
		failure, all = cut(FirstLine(err.Error()), reasonLimit), nil
	}
	s.emits, s.effects, s.outcome, s.err = nil, nil, 0, nil
	at := s.position
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		for i, n := range all {
			if _, err := tx.Exec(ctx, `INSERT INTO shadow_emission
				(shadow, id, event_source, event_id, idx, read_topic, read_partition, read_offset, subject, type, mine, mine_topic, at)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
				ON CONFLICT (shadow, id) DO UPDATE SET event_source = excluded.event_source, event_id = excluded.event_id, idx = excluded.idx,
				read_topic = excluded.read_topic, read_partition = excluded.read_partition, read_offset = excluded.read_offset,
				mine = excluded.mine, mine_topic = excluded.mine_topic`,
				d.name, n.id, e.Source, e.ID, int64(i), at.Topic, int64(at.Partition), at.Offset, n.subject, n.typ, n.digest, n.topic, time.Now().UnixMilli()); err != nil {
				return err
			}
		}
		return d.nothing(ctx, tx, e.Source, e.ID, len(all), failure)
	})
	return nil
}

// ends tells whether an error is the handler's last word on an event.
func (d *shadow) ends(err error, failures int) bool {
	class := fault.ClassOf(err)
	return class == fault.Permanent || (class == fault.Transient && failures+1 >= d.attempts)
}

// emitted is what emissions would be if the primary had made them. Those that name a source of their own aren't compared.
func (d *shadow) emitted(in event.Event, emits []emission) ([]noted, error) {
	var all []noted
	for i, em := range emits {
		out := em.event
		if out.Source != "" {
			continue
		}
		if out.ID == "" {
			out.ID = event.DeriveID(d.primary, in.Source, in.ID, i)
		}
		if out.Subject == "" {
			out.Subject = in.Subject
		}
		out.Source = d.primary
		m, err := out.Encode()
		if err != nil {
			return nil, err
		}
		if out, err = event.Decode(m, event.Position{Topic: em.topic}); err != nil {
			return nil, err
		}
		all = append(all, noted{out.ID, em.topic, out.Subject, out.Type, d.digest(out)})
	}
	return all, nil
}

// digest is an emission's, whoever the source says that it's from.
func (d *shadow) digest(e event.Event) string {
	e.Source = d.primary
	sum := e.Digest()
	return hex.EncodeToString(sum[:])
}

// nothing notes that the shadow's handling of an event makes no emission of an index. Where the primary did make it, it
// may have made the next one too: so that is noted then, and so on; the comparer does the same.
func (d *shadow) nothing(ctx context.Context, tx ledger.Tx, source, eventID string, index int, failure string) error {
	for ; ; index++ {
		id := event.DeriveID(d.primary, source, eventID, index)
		if _, err := tx.Exec(ctx, `INSERT INTO shadow_emission (shadow, id, event_source, event_id, idx, silent, failure, at)
			VALUES ($1, $2, $3, $4, $5, 1, $6, $7)
			ON CONFLICT (shadow, id) DO UPDATE SET event_source = excluded.event_source, event_id = excluded.event_id, idx = excluded.idx,
			silent = 1, failure = excluded.failure`,
			d.name, id, source, eventID, int64(index), failure, time.Now().UnixMilli()); err != nil {
			return err
		}
		var theirs string
		if err := tx.QueryRow(ctx, `SELECT theirs FROM shadow_emission WHERE shadow = $1 AND id = $2`, d.name, id).Scan(&theirs); err != nil {
			return err
		}
		if theirs == "" {
			return nil
		}
		failure = ""
	}
}

// compare notes what the primary emitted.
func (d *shadow) compare(_ context.Context, e event.Event, s *Step) error {
	if !strings.HasPrefix(e.Source, "swarmlog://") || !strings.HasSuffix(e.Source, "/"+d.primary) {
		s.Skip("not emitted by " + d.primary)
		return nil
	}
	digest, topic := d.digest(e), s.position.Topic
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO shadow_emission (shadow, id, subject, type, theirs, theirs_topic, at)
			VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (shadow, id) DO UPDATE SET theirs = excluded.theirs, theirs_topic = excluded.theirs_topic,
			subject = excluded.subject, type = excluded.type`,
			d.name, e.ID, e.Subject, e.Type, digest, topic, time.Now().UnixMilli()); err != nil {
			return err
		}
		var source, eventID string
		var index, silent int64
		if err := tx.QueryRow(ctx, `SELECT event_source, event_id, idx, silent FROM shadow_emission WHERE shadow = $1 AND id = $2`, d.name, e.ID).
			Scan(&source, &eventID, &index, &silent); err != nil || silent == 0 {
			return err
		}
		return d.nothing(ctx, tx, source, eventID, int(index)+1, "")
	})
	return nil
}
