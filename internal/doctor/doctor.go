package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Severity says what a finding can cost.
type Severity string

const (
	// LosesData : something that was accepted, or an effect, can be lost or doubled. Workers refuse to start with it
	// unless the risk is accepted by name.
	LosesData Severity = "loses_data"
	// Warning : a promise of order, progress or speed can break, or a worker can stop.
	Warning Severity = "warning"
	// Info : worth knowing.
	Info Severity = "info"
)

// Finding is one thing that breaks a promise, at one object.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Promise  string   `json:"promise"` // P1 to P8; "": none
	Object   string   `json:"object"`  // topic orders, database app, …
	Found    string   `json:"found"`
	Wanted   string   `json:"wanted"`
	Mend     string   `json:"mend"` // the command, or else what to do
}

// Check is one of the table.
type Check struct {
	Name     string
	Severity Severity
	Promise  string
	find     func(s *Snapshot) []fault
}

// fault is what a check's function finds.
type fault struct{ object, found, wanted, mend string }

// Checks is the table of all checks, the gravest first.
func Checks() []Check { return slices.Clone(checks) }

var checks = []Check{
	{"kafka.replication", LosesData, "P1", topics(replication)},
	{"kafka.min_insync", LosesData, "P1", topics(minInSync)},
	{"kafka.unclean_election", LosesData, "P1", topics(unclean)},
	{"kafka.write_caching", LosesData, "P1", topics(writeCaching)},
	{"kafka.compaction", LosesData, "P1", topics(compaction)},
	{"kafka.retention", LosesData, "P1", topics(retention)},
	{"kafka.overtaken", LosesData, "P1", overtaken},
	{"ledger.behind", LosesData, "P2", behind},
	{"postgres.fsync", LosesData, "P2", database(fsync)},
	{"postgres.full_page_writes", LosesData, "P2", database(fullPages)},
	{"postgres.synchronous_commit", LosesData, "P2", database(synchronousCommit)},
	{"postgres.standby", LosesData, "P2", database(standby)},

	{"kafka.insync_spare", Warning, "P5", topics(inSyncSpare)},
	{"kafka.replicas_away", Warning, "P1", topics(replicasAway)},
	{"kafka.retention_bytes", Warning, "P1", topics(retentionBytes)},
	{"kafka.dead_letters", Warning, "P8", deadLetters},
	{"kafka.message_size", Warning, "P8", messageSize},
	{"kafka.access", Warning, "", access},
	{"quota.ours", Warning, "", ourQuotas},
	{"quota.near_miss", Warning, "", nearMisses},
	{"quota.shared_id", Warning, "", sharedIDs},
	{"clock.database", Warning, "", databaseClock},
	{"clock.brokers", Warning, "", brokerClock},
	{"clock.records", Warning, "P2", topics(recordClock)},
	{"keys.misrouted", Warning, "P3", topics(misrouted)},
	{"keys.timestamps", Warning, "P3", topics(timestamps)},
	{"keys.dominant", Warning, "P6", topics(dominant)},
	{"time.session", Warning, "P5", session},
	{"time.drain", Warning, "P5", drain},
	{"time.overdue", Warning, "P5", overdue},
	{"postgres.primary", Warning, "", database(primary)},
	{"postgres.version", Warning, "", database(version)},
	{"postgres.connections", Warning, "P5", connections},

	{"kafka.topic_missing", Info, "", topicMissing},
	{"kafka.auto_create", Info, "P1", autoCreate},
	{"keys.none", Info, "P3", topics(keyless)},
	{"doctor.blind", Info, "", blind},
}

// Examine runs all checks: what they found, the gravest first.
func Examine(s Snapshot) []Finding {
	findings := []Finding{}
	for _, c := range checks {
		for _, f := range c.find(&s) {
			findings = append(findings, Finding{c.Name, c.Severity, c.Promise, f.object, f.found, f.wanted, f.mend})
		}
	}
	return findings
}

// Worst is the gravest severity among findings; "" where there are none.
func Worst(findings []Finding) Severity {
	worst := Severity("")
	for _, f := range findings {
		switch {
		case f.Severity == LosesData:
			return LosesData
		case f.Severity == Warning, worst == "":
			worst = f.Severity
		}
	}
	return worst
}

// ErrRisk is wrapped by Refused's error where something can lose data.
var ErrRisk = errors.New("data can be lost")

// ErrNoRisk is wrapped by Refused's error where a name that is accepted is no check's.
var ErrNoRisk = errors.New("no such risk")

// Refused is nil where nothing loses data but what is accepted by its check's name; else it says what does, and how to
// mend it or accept it.
func Refused(findings []Finding, accepted []string) error {
	for _, name := range accepted {
		if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == name && c.Severity == LosesData }) {
			return fmt.Errorf("accept risk %q: %w: swarmlog doctor names those that there are", name, ErrNoRisk)
		}
	}
	var lines, names []string
	for _, f := range findings {
		if f.Severity != LosesData || slices.Contains(accepted, f.Check) {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s, want %s. Mend it: %s", f.Check, f.Object, f.Found, f.Wanted, f.Mend))
		if !slices.Contains(names, f.Check) {
			names = append(names, f.Check)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s\nMend these, or accept the loss with --accept-risk %s", ErrRisk, strings.Join(lines, "\n  "), strings.Join(names, ","))
}

// topics makes a check of what one existing topic shows. What is wrong with a topic that doesn't exist is another's to
// say.
func topics(find func(c *Cluster, s *Snapshot, t *Topic) []fault) func(*Snapshot) []fault {
	return func(s *Snapshot) []fault {
		if s.Cluster == nil {
			return nil
		}
		var faults []fault
		for i := range s.Cluster.Topics {
			t := &s.Cluster.Topics[i]
			if t.Missing {
				continue
			}
			for _, f := range find(s.Cluster, s, t) {
				f.object = "topic " + t.Name
				faults = append(faults, f)
			}
		}
		return faults
	}
}

// database makes a check of what the database shows.
func database(find func(d *Database) []fault) func(*Snapshot) []fault {
	return func(s *Snapshot) []fault {
		if s.Database == nil {
			return nil
		}
		faults := find(s.Database)
		for i := range faults {
			faults[i].object = "database " + s.Database.Name + " at " + s.Database.Host
		}
		return faults
	}
}

func one(found, wanted, mend string) []fault {
	return []fault{{found: found, wanted: wanted, mend: mend}}
}

func blind(s *Snapshot) []fault {
	var faults []fault
	for _, b := range s.Blind {
		faults = append(faults, fault{b.What, "it couldn't be looked at: " + b.Why, "a look at it",
			"give the user that swarmlog doctor runs as the right to describe it"})
	}
	return faults
}
