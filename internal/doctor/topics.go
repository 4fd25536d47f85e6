package doctor

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	wantedReplicas = 3
	wantedInSync   = 2
	// deadRetention is the least time that dead letters should be kept for people to come back to them.
	deadRetention = 7 * 24 * time.Hour
	// letterRoom is what a dead letter's headers may add to a record.
	letterRoom = 64 << 10
	// future is how far ahead of now a record's time may lie.
	future = time.Minute
)

// number is a setting as a number; false where it isn't there.
func number(config map[string]string, name string) (int64, bool) {
	n, err := strconv.ParseInt(config[name], 10, 64)
	return n, err == nil
}

// alter is the command that sets a topic's setting.
func (c *Cluster) alter(topic, setting, value string) string {
	if c.Kind == Redpanda {
		return fmt.Sprintf("rpk topic alter-config %s --set %s=%s", topic, setting, value)
	}
	return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config %s=%s", c.Bootstrap, topic, setting, value)
}

// lasting tells whether the cluster is one whose brokers keep copies for each other.
func (c *Cluster) lasting() bool { return c.Kind != Embedded }

func (t *Topic) replicas() int {
	fewest := 0
	for i, p := range t.Partitions {
		if i == 0 || len(p.Replicas) < fewest {
			fewest = len(p.Replicas)
		}
	}
	return fewest
}

func replication(c *Cluster, _ *Snapshot, t *Topic) []fault {
	n := t.replicas()
	if !c.lasting() || n >= wantedReplicas {
		return nil
	}
	return one(fmt.Sprintf("replication factor %d", n), "3 or more", c.replicate(t))
}

// replicate is the command that gives a topic three replicas, its present ones among them.
func (c *Cluster) replicate(t *Topic) string {
	if len(c.Brokers) < wantedReplicas {
		return fmt.Sprintf("add brokers: %d can't hold three copies; then give the topic three replicas", len(c.Brokers))
	}
	if c.Kind == Redpanda {
		return c.alter(t.Name, "replication.factor", "3")
	}
	var parts []string
	for _, p := range t.Partitions {
		replicas := slices.Clone(p.Replicas)
		for i := 0; len(replicas) < wantedReplicas && i < len(c.Brokers); i++ {
			if id := c.Brokers[(int(p.ID)+i)%len(c.Brokers)].ID; !slices.Contains(replicas, id) {
				replicas = append(replicas, id)
			}
		}
		list := strings.ReplaceAll(strings.Trim(fmt.Sprint(replicas), "[]"), " ", ",")
		parts = append(parts, fmt.Sprintf(`{"topic":"%s","partition":%d,"replicas":[%s]}`, t.Name, p.ID, list))
	}
	return fmt.Sprintf(`echo '{"version":1,"partitions":[%s]}' >%s.json && kafka-reassign-partitions.sh --bootstrap-server %s --reassignment-json-file %s.json --execute`,
		strings.Join(parts, ","), t.Name, c.Bootstrap, t.Name)
}

func minInSync(c *Cluster, _ *Snapshot, t *Topic) []fault {
	n, ok := number(t.Config, "min.insync.replicas")
	if c.Kind != Kafka || !ok || n >= wantedInSync { // Redpanda acknowledges by a majority, whatever this says
		return nil
	}
	return one(fmt.Sprintf("min.insync.replicas=%d: a record is acknowledged that one broker alone has", n), "2 or more", c.alter(t.Name, "min.insync.replicas", "2"))
}

func inSyncSpare(c *Cluster, _ *Snapshot, t *Topic) []fault {
	n, ok := number(t.Config, "min.insync.replicas")
	replicas := t.replicas()
	if c.Kind != Kafka || !ok || replicas < wantedReplicas || int(n) < replicas { // fewer replicas are another's to say
		return nil
	}
	return one(fmt.Sprintf("min.insync.replicas=%d of %d replicas: nothing can be written while one broker is away", n, replicas),
		"one less than the replicas", c.alter(t.Name, "min.insync.replicas", strconv.Itoa(replicas-1)))
}

func unclean(c *Cluster, _ *Snapshot, t *Topic) []fault {
	if !c.lasting() || t.Config["unclean.leader.election.enable"] != "true" {
		return nil
	}
	return one("unclean.leader.election.enable=true: a replica that lags may become leader, and what it lacks is gone", "false",
		c.alter(t.Name, "unclean.leader.election.enable", "false"))
}

func writeCaching(c *Cluster, _ *Snapshot, t *Topic) []fault {
	if c.Kind != Redpanda || t.Config["write.caching"] != "true" {
		return nil
	}
	return one("write.caching=true: records are acknowledged before they are on disk", "false", c.alter(t.Name, "write.caching", "false"))
}

func compaction(c *Cluster, _ *Snapshot, t *Topic) []fault {
	policy := t.Config["cleanup.policy"]
	if !strings.Contains(policy, "compact") {
		return nil
	}
	return one("cleanup.policy="+policy+": older events of an aggregate are removed", "delete", c.alter(t.Name, "cleanup.policy", "delete"))
}

func retention(c *Cluster, s *Snapshot, t *Topic) []fault {
	kept, ok := t.kept()
	if t.DeadOf != "" || !ok || kept >= s.Swarm.RecoveryTime {
		return nil
	}
	return one(fmt.Sprintf("retention.ms=%d (%s): what workers couldn't read for that long is removed", kept.Milliseconds(), kept),
		fmt.Sprintf("the time that a recovery may take, %s, or more", s.Swarm.RecoveryTime),
		c.alter(t.Name, "retention.ms", strconv.FormatInt(max(s.Swarm.RecoveryTime, deadRetention).Milliseconds(), 10)))
}

// kept is for how long a topic keeps records; false where for ever, or where it doesn't tell.
func (t *Topic) kept() (time.Duration, bool) {
	ms, ok := number(t.Config, "retention.ms")
	if !ok || ms < 0 || t.Config["cleanup.policy"] == "compact" {
		return 0, false
	}
	if ms > int64(1<<63-1)/int64(time.Millisecond) {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

func retentionBytes(c *Cluster, _ *Snapshot, t *Topic) []fault {
	n, ok := number(t.Config, "retention.bytes")
	if !ok || n < 0 {
		return nil
	}
	return one(fmt.Sprintf("retention.bytes=%d: a burst removes records, however young", n), "-1, so that time alone removes records",
		c.alter(t.Name, "retention.bytes", "-1"))
}

func replicasAway(c *Cluster, _ *Snapshot, t *Topic) []fault {
	var led, behind []string
	for _, p := range t.Partitions {
		switch {
		case p.Leader < 0:
			led = append(led, strconv.Itoa(int(p.ID)))
		case len(p.InSync) < len(p.Replicas):
			behind = append(behind, strconv.Itoa(int(p.ID)))
		}
	}
	var faults []fault
	if len(led) > 0 {
		faults = append(faults, fault{found: "no leader for partitions " + strings.Join(led, ", "), wanted: "a leader for each", mend: "start the brokers that hold them"})
	}
	if len(behind) > 0 {
		faults = append(faults, fault{found: "replicas of partitions " + strings.Join(behind, ", ") + " aren't in sync", wanted: "all in sync",
			mend: fmt.Sprintf("start the brokers that are away, or wait until they have caught up: kafka-topics.sh --bootstrap-server %s --describe --under-replicated-partitions", c.Bootstrap)})
	}
	return faults
}

func topicMissing(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	var faults []fault
	for _, t := range s.Cluster.Topics {
		if t.Missing && t.DeadOf == "" {
			faults = append(faults, fault{"topic " + t.Name, "it doesn't exist", "a topic", "swarmlog run " + s.Swarm.File + " makes it when it starts"})
		}
	}
	return faults
}

// deadLetters compares dead-letter topics with those that they are for.
func deadLetters(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	byName := map[string]*Topic{}
	for i := range s.Cluster.Topics {
		byName[s.Cluster.Topics[i].Name] = &s.Cluster.Topics[i]
	}
	var faults []fault
	for _, t := range s.Cluster.Topics {
		source := byName[t.DeadOf]
		if t.DeadOf == "" || source == nil || source.Missing {
			continue
		}
		for _, f := range s.Cluster.letters(&t, source) {
			f.object = "topic " + t.Name
			faults = append(faults, f)
		}
	}
	return faults
}

func (c *Cluster) letters(t, source *Topic) []fault {
	have, want := len(t.Partitions), len(source.Partitions)
	grow := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --alter --topic %s --partitions %d", c.Bootstrap, t.Name, want)
	add := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d --replication-factor %d --config retention.ms=2592000000",
		c.Bootstrap, t.Name, want, max(source.replicas(), 1))
	if c.Kind == Redpanda {
		grow = fmt.Sprintf("rpk topic add-partitions %s --num %d", t.Name, max(want-have, 1))
		add = fmt.Sprintf("rpk topic create %s --partitions %d --replicas %d --topic-config retention.ms=2592000000", t.Name, want, max(source.replicas(), 1))
	}
	switch {
	case t.Missing:
		return one("it doesn't exist: dead records of "+source.Name+" have nowhere to go", "a topic of as many partitions as "+source.Name, add)
	case have < want:
		return one(fmt.Sprintf("%d partitions, and %s has %d: dead letters of the rest have no place of their own", have, source.Name, want), strconv.Itoa(want), grow)
	case have > want:
		return one(fmt.Sprintf("%d partitions, and %s has %d", have, source.Name, want), strconv.Itoa(want),
			"it does no harm; to mend it, delete and create the topic anew once its letters are redriven: "+add)
	}
	if kept, ok := t.kept(); ok && kept < deadRetention {
		return one(fmt.Sprintf("retention.ms=%d (%s): dead letters are gone before somebody has looked at them", kept.Milliseconds(), kept), "7 days or more",
			c.alter(t.Name, "retention.ms", "2592000000"))
	}
	return nil
}

// messageSize compares the limits that a record meets on its way: from its topic to the dead-letter topic, by way of a
// worker and the brokers' connections.
func messageSize(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	limit := map[string]int64{}
	for _, t := range s.Cluster.Topics {
		if n, ok := number(t.Config, "max.message.bytes"); ok && !t.Missing {
			limit[t.Name] = n
		}
	}
	most, whose := s.most()
	var faults []fault
	for _, t := range s.Cluster.Topics {
		n, ok := limit[t.Name]
		if !ok {
			continue
		}
		source, letters := limit[t.DeadOf]
		want := most - letterRoom // so that its dead letters fit, too
		if letters {
			want = min(source+letterRoom, most)
		}
		alter := s.Cluster.alter(t.Name, "max.message.bytes", strconv.FormatInt(want, 10))
		switch {
		case n > most:
			faults = append(faults, fault{"topic " + t.Name, fmt.Sprintf("max.message.bytes=%d, and %s takes at most %d", n, whose, most), fmt.Sprintf("%d or less", most), alter})
		case letters && n < min(source, most):
			faults = append(faults, fault{"topic " + t.Name, fmt.Sprintf("max.message.bytes=%d, and %s takes %d: a dead letter may not fit", n, t.DeadOf, source),
				fmt.Sprintf("%d or more", want), alter})
		}
	}
	return faults
}

// most is the largest batch that workers and brokers take, and who takes no more.
func (s *Snapshot) most() (most int64, whose string) {
	most, whose = math.MaxInt32, "the protocol"
	if n := int64(s.Swarm.MaxBatch); n > 0 {
		most, whose = n, "a worker"
	}
	for _, b := range s.Cluster.Brokers {
		if n, ok := number(b.Config, "socket.request.max.bytes"); ok && n < most {
			most, whose = n, fmt.Sprintf("broker %d (socket.request.max.bytes)", b.ID)
		}
	}
	return most, whose
}

func autoCreate(s *Snapshot) []fault {
	if s.Cluster == nil || !s.Cluster.lasting() {
		return nil
	}
	for _, b := range s.Cluster.Brokers {
		on := b.Config["auto.create.topics.enable"] == "true" || b.Config["auto_create_topics_enabled"] == "true"
		if !on {
			continue
		}
		mend := "set auto.create.topics.enable=false in server.properties of every broker, and restart them one by one"
		if s.Cluster.Kind == Redpanda {
			mend = "rpk cluster config set auto_create_topics_enabled false"
		}
		return []fault{{fmt.Sprintf("broker %d", b.ID), "auto.create.topics.enable=true: a mistyped name makes a topic that nobody has looked at", "false", mend}}
	}
	return nil
}

func recordClock(c *Cluster, _ *Snapshot, t *Topic) []fault {
	ahead := t.Newest.Sub(t.Seen)
	if t.Newest.IsZero() || t.Seen.IsZero() || ahead <= future {
		return nil
	}
	return one(fmt.Sprintf("its newest record bears a time %s ahead of the clock here: retention and the horizon of duplicates go by that time", ahead.Round(time.Second)),
		"no time ahead of now", "set the clock of whoever produces to it, or let the brokers stamp records: "+c.alter(t.Name, "message.timestamp.type", "LogAppendTime"))
}

// overtaken tells of records that were removed before an agent had read them.
func overtaken(s *Snapshot) []fault {
	var faults []fault
	for _, p := range s.Swarm.Progress {
		if p.Next >= p.Start {
			continue
		}
		faults = append(faults, fault{fmt.Sprintf("agent %s, %s/%d", p.Agent, p.Topic, p.Partition),
			fmt.Sprintf("the log begins at %d, and the agent has come to %d: %d offsets were removed unread", p.Start, p.Next, p.Start-p.Next),
			"nothing removed before it's read", s.cluster().alter(p.Topic, "retention.ms", strconv.FormatInt(deadRetention.Milliseconds(), 10)) +
				"; what is gone has to come from where it came from"})
	}
	return faults
}

// behind tells of a ledger that knows less than it once did.
func behind(s *Snapshot) []fault {
	var faults []fault
	for _, p := range s.Swarm.Progress {
		object := fmt.Sprintf("agent %s, %s/%d", p.Agent, p.Topic, p.Partition)
		switch {
		case p.Next > p.End:
			faults = append(faults, fault{object, fmt.Sprintf("the agent has come to %d, and the log ends at %d: the topic lost records, or was made anew", p.Next, p.End),
				"a log as long as it was", "find out what happened to the topic before a worker starts"})
		case p.Committed > p.Next:
			faults = append(faults, fault{object, fmt.Sprintf("the ledger has come to %d, and once reported %d: it went back, by a fail-over or a restored backup", p.Next, p.Committed),
				"a ledger that knows all it has reported", "swarmlog recover --swarm " + s.Swarm.File})
		}
	}
	return faults
}

// cluster is the cluster, for commands.
func (s *Snapshot) cluster() *Cluster {
	if s.Cluster == nil {
		return &Cluster{Kind: Kafka, Bootstrap: "BROKER:9092"}
	}
	return s.Cluster
}
