package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	oldestPostgres = 140000
	// skew is how far clocks may differ before it's worth a word, beyond what the way there may account for.
	skew = 2 * time.Second
)

const reload = "; SELECT pg_reload_conf();"

func fsync(d *Database) []fault {
	if d.Fsync != "off" {
		return nil
	}
	return one("fsync=off: a crash of the machine loses commits, and may destroy the database", "on", "ALTER SYSTEM SET fsync = on"+reload)
}

func fullPages(d *Database) []fault {
	if d.FullPageWrites != "off" {
		return nil
	}
	return one("full_page_writes=off: a crash may leave half-written pages", "on", "ALTER SYSTEM SET full_page_writes = on"+reload)
}

func synchronousCommit(d *Database) []fault {
	if d.SynchronousCommit != "off" {
		return nil
	}
	return one("synchronous_commit=off ("+d.CommitSource+"): a crash loses commits that were acknowledged", "on", d.commitOn())
}

// commitOn is the command that sets synchronous_commit where it was set.
func (d *Database) commitOn() string {
	switch d.CommitSource {
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s SET synchronous_commit = on;", quoted(d.Name))
	case "user":
		return fmt.Sprintf("ALTER ROLE %s SET synchronous_commit = on;", quoted(d.User))
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET synchronous_commit = on;", quoted(d.User), quoted(d.Name))
	case "client":
		return "leave synchronous_commit out of the connection string's options"
	case "command line":
		return "take synchronous_commit out of the server's command line, and restart it"
	}
	return "ALTER SYSTEM SET synchronous_commit = on" + reload
}

func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// standby tells of stand-bys of which none is sure to have what was committed.
func standby(d *Database) []fault {
	if len(d.Standbys) == 0 || d.InRecovery {
		return nil
	}
	var names []string
	safe, unknown := false, false
	for _, s := range d.Standbys {
		names = append(names, quoted(s.Name))
		safe = safe || s.Sync == "sync" || s.Sync == "quorum"
		unknown = unknown || s.Sync == ""
	}
	slices.Sort(names)
	names = slices.Compact(names)
	list := strings.Join(names, ", ")
	switch {
	case safe && d.SynchronousCommit == "local":
		return one("synchronous_commit=local ("+d.CommitSource+"): a commit doesn't wait for the stand-by "+list+", and a fail-over loses it", "on", d.commitOn())
	case safe || unknown:
		return nil
	}
	return one("stand-bys follow asynchronously ("+list+"): a fail-over loses the last commits", "one that a commit waits for",
		fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (%s)'%s", list, reload))
}

func primary(d *Database) []fault {
	if !d.InRecovery {
		return nil
	}
	return one("it's a stand-by, which takes no writes", "the primary", "name all hosts in the connection string, with target_session_attrs=read-write")
}

func version(d *Database) []fault {
	if d.Number == 0 || d.Number >= oldestPostgres {
		return nil
	}
	return one("PostgreSQL "+d.Version, "14 or newer", "move the database to a newer server: pg_upgrade")
}

func connections(s *Snapshot) []fault {
	d := s.Database
	if d == nil || s.Swarm.Connections == 0 || d.Connections >= s.Swarm.Connections {
		return nil
	}
	return []fault{{"database " + d.Name + " at " + d.Host, fmt.Sprintf("%d connections are left, and a worker may open %d", d.Connections, s.Swarm.Connections),
		"room for one more worker at least", "give workers fewer (postgres.connections), or the server more: ALTER SYSTEM SET max_connections = 200; and restart it"}}
}

func databaseClock(s *Snapshot) []fault {
	if s.Database == nil {
		return nil
	}
	return s.Database.Clock.off("the database")
}

func brokerClock(s *Snapshot) []fault {
	if s.Cluster == nil || s.Cluster.Clock == nil {
		return nil
	}
	return s.Cluster.Clock.off(s.Cluster.Clock.Name)
}

// off tells of a clock that differs from the one here by more than the way there accounts for.
func (c Clock) off(whose string) []fault {
	if c.There.IsZero() {
		return nil
	}
	by := c.There.Sub(c.Here)
	if by.Abs() <= skew+c.Trip/2 {
		return nil
	}
	way := "ahead of"
	if by < 0 {
		way = "behind"
	}
	return []fault{{"clock of " + whose, fmt.Sprintf("it's %s %s the one here", by.Abs().Round(100*time.Millisecond), way), "clocks that agree within 2s",
		"let both machines keep time by NTP: timedatectl set-ntp true"}}
}

func access(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	user, who := s.Cluster.User, "user "+s.Cluster.User
	if user == "" { // nobody logs in, or a certificate or a token says who it is
		user, who = "PRINCIPAL", "the principal of workers"
	}
	var faults []fault
	for _, d := range s.Cluster.Denied {
		on := fmt.Sprintf("--%s %s", d.Resource, d.Name)
		if d.Resource == "cluster" {
			on = "--cluster"
		}
		faults = append(faults, fault{strings.TrimSpace(d.Resource + " " + d.Name), who + " may not " + d.Operation, d.Operation,
			fmt.Sprintf("kafka-acls.sh --bootstrap-server %s --add --allow-principal User:%s --operation %s %s", s.Cluster.Bootstrap, user, d.Operation, on)})
	}
	return faults
}

// session compares how members of Kafka groups behave with what brokers take.
func session(s *Snapshot) []fault {
	m := s.Swarm.Members
	if m == nil {
		return nil
	}
	var faults []fault
	if s.Cluster != nil {
		for _, b := range s.Cluster.Brokers {
			least, ok1 := number(b.Config, "group.min.session.timeout.ms")
			most, ok2 := number(b.Config, "group.max.session.timeout.ms")
			if ms := m.Session.Milliseconds(); ok1 && ms < least || ok2 && ms > most {
				faults = append(faults, fault{fmt.Sprintf("broker %d", b.ID), fmt.Sprintf("it takes sessions of %d to %d ms, and workers ask for %d", least, most, ms),
					"a session that brokers take", fmt.Sprintf("set the group's session to %s, or the brokers' group.min.session.timeout.ms lower", time.Duration(least)*time.Millisecond)})
				break
			}
		}
	}
	if s.Swarm.Drain > m.Rebalance {
		faults = append(faults, fault{"workers", fmt.Sprintf("giving partitions up may take %s (worker.drain), and the group waits for %s", s.Swarm.Drain, m.Rebalance),
			"a drain time below the group's", fmt.Sprintf("swarmlog run %s --drain %s", s.Swarm.File, m.Rebalance/2)})
	}
	return faults
}

// drain compares how long steps are seen to run with how long a worker that stops lets them.
func drain(s *Snapshot) []fault {
	var faults []fault
	for _, w := range s.Swarm.Workers {
		if s.Swarm.Drain > 0 && w.Oldest > s.Swarm.Drain && !s.Swarm.over(w) {
			faults = append(faults, fault{"worker " + w.ID, fmt.Sprintf("a step has been running for %s, and a worker that stops waits %s for it: it would be run again elsewhere", w.Oldest.Round(time.Second), s.Swarm.Drain),
				"a drain time above the steps' times", fmt.Sprintf("swarmlog run %s --drain %s", s.Swarm.File, (2 * w.Oldest).Round(time.Second))})
		}
	}
	return faults
}

// overdue tells of steps that run for longer than any agent's may.
func overdue(s *Snapshot) []fault {
	var faults []fault
	for _, w := range s.Swarm.Workers {
		if s.Swarm.over(w) {
			faults = append(faults, fault{"worker " + w.ID, fmt.Sprintf("a step has been running for %s, longer than any agent's time-out", w.Oldest.Round(time.Second)),
				"steps that end when they're told to", "look what its handler waits for; restart the worker to run the step elsewhere"})
		}
	}
	return faults
}

// over tells whether a worker's oldest step has run for longer than any agent's may.
func (s *Swarm) over(w Worker) bool {
	longest := time.Duration(0)
	for _, a := range s.Agents {
		longest = max(longest, a.StepLimit)
	}
	return longest > 0 && w.Oldest > longest+longest/10
}
