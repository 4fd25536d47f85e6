package letters

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// State is what has become of a dead letter.
type State string

const (
	Parked    State = "parked"    // its aggregate waits behind it
	Dead      State = "dead"      // it waits for a person; nothing waits behind it
	Redriving State = "redriving" // it was let go on, and hasn't been handled yet
	Settled   State = "settled"   // nobody needs to act: it was handled since, skipped, or its topic is gone
)

// Waits tells whether a person has yet to decide.
func (s State) Waits() bool { return s == Parked || s == Dead }

// Letter is a record that was given up.
type Letter struct {
	Agent     string     `json:"agent" doc:"The agent that gave it up"`
	Topic     string     `json:"topic" doc:"Where the record is"`
	Partition int32      `json:"partition"`
	Offset    int64      `json:"offset"`
	Subject   string     `json:"subject" doc:"Its aggregate; empty where it has none"`
	State     State      `json:"state" enum:"parked,dead,redriving,settled" doc:"parked: its aggregate waits behind it; dead: it waits for a person; redriving: it was let go on and isn't handled yet; settled: nobody needs to act"`
	Behind    int64      `json:"behind" doc:"Records that wait behind it"`
	First     *time.Time `json:"first_failure" doc:"null where unknown"`
	Last      *time.Time `json:"last_failure" doc:"null where unknown"`
	Attempts  int        `json:"attempts" doc:"0 where unknown"`
	Class     string     `json:"class" doc:"Class of the last error; empty where unknown"`
	Reason    string     `json:"reason"`
	SizeBytes int64      `json:"size_bytes" doc:"Size of key and value"`
	Omitted   bool       `json:"value_omitted" doc:"Whether the value was too large for the letter: it is in the record's own topic, as long as that holds it"`
	LetterAt  *LetterAt  `json:"letter" doc:"Where the letter is; null where it isn't in the dead-letter topic, and is known from the backlog"`

	Content *Content `json:"content,omitempty" doc:"The record, as it was"`

	topicID [16]byte
	message event.Message // as it was, without what the letter adds
}

// LetterAt is a place in a dead-letter topic.
type LetterAt struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Content is a record's bytes, unchanged. In JSON they're base64; null is not the same as empty.
type Content struct {
	Key     []byte     `json:"key" doc:"Base64; null where it has none"`
	Value   []byte     `json:"value" doc:"Base64; null where it has none, or where value_omitted is true"`
	Headers []Header   `json:"headers"`
	Time    *time.Time `json:"time" doc:"When the record was appended; null where unknown"`
}

// Header is a header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value" doc:"Base64"`
}

// Key is the lease that the record belongs to.
func (l *Letter) Key() ledger.Key {
	return ledger.Key{Group: l.Agent, TopicID: l.topicID, Partition: l.Partition}
}

func (l *Letter) place() ledger.WaitPlace {
	return ledger.WaitPlace{Group: l.Agent, TopicID: l.topicID, Partition: l.Partition, Offset: l.Offset}
}

// position is the record's place.
func (l *Letter) position() event.Position {
	return event.Position{Topic: l.Topic, Partition: l.Partition, Offset: l.Offset}
}

// lane is what the record is queued by.
func (l *Letter) lane() string { return engine.LaneKey(l.Subject, l.Offset) }

// open reads a dead letter. What isn't one, since anybody may write to a topic, is nil. id is the topic's present id,
// for letters that don't say it.
func open(r broker.Record, topic string, id broker.TopicID) *Letter {
	h := map[string]string{}
	m := r.Message
	m.Headers = nil
	for _, x := range r.Headers {
		if engine.IsDeadHeader(x.Key) {
			h[x.Key] = string(x.Value)
		} else {
			m.Headers = append(m.Headers, x)
		}
	}
	l := &Letter{Agent: h[engine.HeaderDeadAgent], Topic: h[engine.HeaderDeadTopic], Class: h[engine.HeaderDeadClass],
		Reason: h[engine.HeaderDeadReason], topicID: id, LetterAt: &LetterAt{r.Topic, r.Position.Partition, r.Position.Offset}}
	partition, err := strconv.ParseInt(h[engine.HeaderDeadPartition], 10, 32)
	if err != nil || partition < 0 || l.Agent == "" || l.Topic != topic {
		return nil
	}
	if l.Offset, err = strconv.ParseInt(h[engine.HeaderDeadOffset], 10, 64); err != nil || l.Offset < 0 {
		return nil
	}
	l.Partition = int32(partition)
	if said, err := hex.DecodeString(h[engine.HeaderDeadTopicID]); err == nil && len(said) == len(l.topicID) {
		l.topicID = [16]byte(said)
	}
	l.Attempts, _ = strconv.Atoi(h[engine.HeaderDeadAttempts])
	l.First, l.Last = instant(h[engine.HeaderDeadFirst]), instant(h[engine.HeaderDeadLast])
	if at := instant(h[engine.HeaderDeadTime]); at != nil {
		m.Time = *at
	}
	l.SizeBytes = int64(len(m.Key) + len(m.Value))
	if n, err := strconv.ParseInt(h[engine.HeaderDeadOmitted], 10, 64); err == nil && n >= 0 {
		l.Omitted, l.SizeBytes = true, int64(len(m.Key))+n
	}
	l.take(m)
	return l
}

// take sets the record and its aggregate. A record that can't be decoded may still tell its aggregate.
func (l *Letter) take(m event.Message) {
	l.message = m
	e, _ := event.Decode(m, l.position())
	l.Subject = e.Subject
}

// fromRow makes a letter of a backlog row whose letter isn't in the topic.
func fromRow(r *ledger.WaitRow) *Letter {
	l := &Letter{Agent: r.Key.Group, Topic: r.Topic, Partition: r.Key.Partition, Offset: r.Offset, Reason: r.Reason,
		SizeBytes: int64(len(r.Message.Key) + len(r.Message.Value)), topicID: r.Key.TopicID}
	if !r.Arrived.IsZero() {
		at := r.Arrived.UTC()
		l.Last = &at
	}
	l.take(r.Message)
	return l
}

func instant(s string) *time.Time {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil
	}
	at = at.UTC()
	return &at
}

// content is the record, for people.
func content(m event.Message) *Content {
	c := &Content{Key: m.Key, Value: m.Value, Headers: make([]Header, len(m.Headers))}
	for i, h := range m.Headers {
		c.Headers[i] = Header(h)
	}
	if !m.Time.IsZero() {
		at := m.Time.UTC()
		c.Time = &at
	}
	return c
}
