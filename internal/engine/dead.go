package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Headers that a dead letter carries besides those of its record, which are kept as they are.
const (
	HeaderDeadAgent     = "swarmlog-dead-agent"
	HeaderDeadTopic     = "swarmlog-dead-topic"
	HeaderDeadTopicID   = "swarmlog-dead-topic-id" // in hex: a topic may be created anew under its name
	HeaderDeadPartition = "swarmlog-dead-partition"
	HeaderDeadOffset    = "swarmlog-dead-offset"
	HeaderDeadTime      = "swarmlog-dead-record-time" // RFC 3339: when the record was appended
	HeaderDeadReason    = "swarmlog-dead-reason"      // at most 4 KiB
	HeaderDeadClass     = "swarmlog-dead-class"
	HeaderDeadAttempts  = "swarmlog-dead-attempts"
	HeaderDeadFirst     = "swarmlog-dead-first-failure" // RFC 3339
	HeaderDeadLast      = "swarmlog-dead-last-failure"  // RFC 3339
	HeaderDeadOmitted   = "swarmlog-dead-value-omitted" // how many bytes the value had, where the letter was too large to carry it; the record's own headers may be missing too
	deadPrefix          = "swarmlog-dead-"
)

const (
	reasonLimit = 4 << 10
	reasonShort = 256 // where the topic takes no more
)

// IsDeadHeader tells whether a header was added to a dead letter, and isn't its record's.
func IsDeadHeader(key string) bool { return strings.HasPrefix(key, deadPrefix) }

// DeadTopic is the dead-letter topic of a topic; it has the same partitions.
func DeadTopic(topic string) string { return topic + ".dead" }

// dead is the step that dead-letters a task: through the outbox, so that the letter is neither lost nor doubled,
// and with its aggregate parked behind it unless the agent skips.
func (g *group) dead(t *task, why error) *ledger.Step {
	s := g.step(t, ledger.Dead)
	topic := DeadTopic(t.record.Topic)
	m := g.letter(t, why)
	if limit := g.eng.relay.limit(topic); size(m) > limit {
		m.Headers = append(m.Headers, event.Header{Key: HeaderDeadOmitted, Value: []byte(strconv.Itoa(len(m.Value)))})
		m.Value = nil
		for i, h := range m.Headers { // a letter that its topic never takes would hold up all that is published after it
			if h.Key == HeaderDeadReason && size(m) > limit {
				m.Headers[i].Value = []byte(cut(string(h.Value), reasonShort))
			}
		}
		if size(m) > limit { // what it carries besides is what is too large: only what says why stays
			m.Headers = slices.DeleteFunc(m.Headers, func(h event.Header) bool { return !strings.HasPrefix(h.Key, deadPrefix) })
		}
		if size(m) > limit {
			m.Key = nil
		}
	}
	s.Emits = []ledger.Outgoing{{Topic: topic, Partition: t.record.Partition, Message: m}}
	if g.spec.shadow {
		s.Emits = nil
	}
	if g.spec.OnDead == Park && t.event.Subject != "" && !t.alone() {
		s.Wait = g.row(t, ledger.ParkedReason+" "+t.record.Position.String()+": "+cut(FirstLine(why.Error()), 256))
		s.Wait.Dead = true
	}
	return s
}

// conflicting dead-letters a task whose id another event has. It parks nothing: the aggregate's own event of that name
// was applied.
func (g *group) conflicting(t *task, why error) *ledger.Step {
	s := g.dead(t, why)
	s.Wait, s.Event.Sequence = nil, 0
	return s
}

// letter is a task's record with why it died; key, value and headers stay as they were.
func (g *group) letter(t *task, why error) event.Message {
	now := time.Now().UTC()
	first := t.firstFailed.UTC()
	if t.firstFailed.IsZero() {
		first = now
	}
	m := t.record.Message
	headers := make([]event.Header, 0, len(m.Headers)+11)
	for _, h := range m.Headers { // a letter that dies again replaces what was said of it
		if !strings.HasPrefix(h.Key, deadPrefix) {
			headers = append(headers, h)
		}
	}
	add := func(key, value string) { headers = append(headers, event.Header{Key: key, Value: []byte(value)}) }
	add(HeaderDeadAgent, g.spec.Name)
	add(HeaderDeadTopic, t.record.Topic)
	add(HeaderDeadTopicID, t.record.TopicID.String())
	add(HeaderDeadPartition, fmt.Sprint(t.record.Partition))
	add(HeaderDeadOffset, fmt.Sprint(t.record.Offset))
	add(HeaderDeadTime, t.record.Time.UTC().Format(time.RFC3339Nano))
	add(HeaderDeadReason, cut(why.Error(), reasonLimit))
	add(HeaderDeadClass, fault.ClassOf(why).String())
	add(HeaderDeadAttempts, strconv.Itoa(t.attempt))
	add(HeaderDeadFirst, first.Format(time.RFC3339Nano))
	add(HeaderDeadLast, now.Format(time.RFC3339Nano))
	m.Headers = headers
	return m
}

// deadReason reads the reason back from a dead step.
func deadReason(s *ledger.Step) string {
	for _, e := range s.Emits {
		for _, h := range e.Message.Headers {
			if h.Key == HeaderDeadReason {
				return FirstLine(string(h.Value))
			}
		}
	}
	return ""
}

// cut shortens a text to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
