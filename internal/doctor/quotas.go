package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// kinds of limits that brokers hold clients to.
var quotaKinds = []string{"producer_byte_rate", "consumer_byte_rate", "request_percentage"}

const (
	user   = "user"
	client = "client-id"
	prefix = "client-id-prefix" // Redpanda
)

// libraryIDs are client ids that libraries carry where nobody sets one: who has one shares its quota with strangers.
var libraryIDs = []string{"kgo", "sarama", "rdkafka", "kafkajs", "kafka-python", "segmentio"}

// rank is in which order brokers look for a quota of a kind, the first found counting; -1 where it isn't this client's.
func (q Quota) rank(userName, clientID string) int {
	u, hasUser := q.Entity[user]
	c, hasClient := q.Entity[client]
	p, hasPrefix := q.Entity[prefix]
	known := 0
	for _, has := range []bool{hasUser, hasClient, hasPrefix} {
		if has {
			known++
		}
	}
	if known != len(q.Entity) || known == 0 || userName == "" && hasUser && u != nil {
		return -1
	}
	exact := func(name *string, is string) bool { return name != nil && *name == is }
	switch {
	case hasPrefix:
		if !hasUser && p != nil && strings.HasPrefix(clientID, *p) {
			return 7
		}
		return -1
	case hasUser && u != nil && !exact(u, userName), hasClient && c != nil && !exact(c, clientID):
		return -1
	}
	switch { // KIP-55's order
	case hasUser && u != nil && hasClient && c != nil:
		return 0
	case hasUser && u != nil && hasClient:
		return 1
	case hasUser && u != nil:
		return 2
	case hasUser && hasClient && c != nil:
		return 3
	case hasUser && hasClient:
		return 4
	case hasUser:
		return 5
	case c != nil:
		return 6
	}
	return 8
}

// effective is the quota of a kind that holds for a client; nil where none does.
func (c *Cluster) effective(kind, clientID string) *Quota {
	var best *Quota
	for i := range c.Quotas {
		q := &c.Quotas[i]
		rank := q.rank(c.User, clientID)
		if _, ok := q.Values[kind]; !ok || rank < 0 {
			continue
		}
		if best == nil || rank < best.rank(c.User, clientID) {
			best = q
		}
	}
	return best
}

// name is a quota's entity, as the flags of kafka-configs.sh name it.
func (q *Quota) name() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(q.Entity)) {
		flag := map[string]string{user: "users", client: "clients", prefix: "client-id-prefix"}[kind]
		if name := q.Entity[kind]; name != nil {
			parts = append(parts, fmt.Sprintf("--entity-type %s --entity-name %s", flag, *name))
		} else {
			parts = append(parts, fmt.Sprintf("--entity-type %s --entity-default", flag))
		}
	}
	return strings.Join(parts, " ")
}

// people names it for people.
func (q *Quota) people() string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(q.Entity)) {
		if name := q.Entity[kind]; name != nil {
			parts = append(parts, kind+" "+*name)
		} else {
			parts = append(parts, "the default "+kind)
		}
	}
	return strings.Join(parts, " and ")
}

// ourQuotas tells of quotas that hold for a worker's connections, each once.
func ourQuotas(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	var faults []fault
	for _, kind := range quotaKinds {
		held := map[*Quota][]string{}
		for _, id := range s.Cluster.Clients {
			if q := s.Cluster.effective(kind, id); q != nil {
				held[q] = append(held[q], id)
			}
		}
		for i := range s.Cluster.Quotas {
			q := &s.Cluster.Quotas[i]
			if len(held[q]) == 0 {
				continue
			}
			remove := fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter %s --delete-config %s", s.Cluster.Bootstrap, q.name(), kind)
			if s.Cluster.Kind == Redpanda {
				remove = "rpk cluster quotas alter --delete " + kind + " …"
			}
			faults = append(faults, fault{"client ids " + strings.Join(held[q], ", "),
				fmt.Sprintf("%s=%g holds for them, by the quota of %s: brokers slow workers down to it", kind, q.Values[kind], q.people()),
				"no quota, or one that is meant for them", "leave it if it's meant; else: " + remove})
		}
	}
	return faults
}

// nearMisses tells of quotas that look as if they were written for a worker's connections, and hold for none.
func nearMisses(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	var faults []fault
	for i := range s.Cluster.Quotas {
		q := &s.Cluster.Quotas[i]
		name := q.Entity[client]
		if name == nil || *name == "" || slices.Contains(s.Cluster.Clients, *name) {
			continue
		}
		for _, id := range s.Cluster.Clients {
			if strings.HasPrefix(id, *name+"-") || strings.HasPrefix(*name, id+"-") || strings.EqualFold(id, *name) {
				faults = append(faults, fault{"client id " + id, fmt.Sprintf("a quota is written for client id %s, which nobody here has", *name),
					"quotas for the ids that there are: " + strings.Join(s.Cluster.Clients, ", "),
					fmt.Sprintf("write it for each of them, or take it away: kafka-configs.sh --bootstrap-server %s --alter %s --delete-config %s",
						s.Cluster.Bootstrap, q.name(), strings.Join(slices.Sorted(maps.Keys(q.Values)), ","))})
				break
			}
		}
	}
	return faults
}

func sharedIDs(s *Snapshot) []fault {
	if s.Cluster == nil {
		return nil
	}
	var faults []fault
	for _, id := range s.Cluster.Clients {
		if slices.Contains(libraryIDs, strings.ToLower(id)) {
			faults = append(faults, fault{"client id " + id, "it's the default of a client library: strangers have it too, and share its quota", "an id of its own",
				"set kafka.client_id in " + s.Swarm.File})
		}
	}
	return faults
}
