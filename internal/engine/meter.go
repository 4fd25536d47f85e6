package engine

import (
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Meter is fed from the hot path; its methods must be fast and must not block.
type Meter interface {
	Settled(agent string, outcome ledger.Outcome)
	Retried(agent string)
	Stepped(agent string, took time.Duration) // a handler returned, however
	Fenced(agent string)
	LeaseTaken(agent string)
	LeaseLost(agent string)
	Committed(steps int, took time.Duration)
	Published(records int)
}

type noMeter struct{}

func (noMeter) Settled(string, ledger.Outcome) {}
func (noMeter) Retried(string)                 {}
func (noMeter) Stepped(string, time.Duration)  {}
func (noMeter) Fenced(string)                  {}
func (noMeter) LeaseTaken(string)              {}
func (noMeter) LeaseLost(string)               {}
func (noMeter) Committed(int, time.Duration)   {}
func (noMeter) Published(int)                  {}

// NoticeKind names what a notice is about.
type NoticeKind string

const (
	NoticeDead      NoticeKind = "dead"      // a record was dead-lettered
	NoticeWaiting   NoticeKind = "waiting"   // a record went to the backlog
	NoticeRetry     NoticeKind = "retry"     // a step failed and will run again
	NoticeLease     NoticeKind = "lease"     // a partition was taken, lost or given back
	NoticeStall     NoticeKind = "stall"     // commits or publishing can't go on for now
	NoticeFailed    NoticeKind = "failed"    // an agent stopped for good
	NoticeCircuit   NoticeKind = "circuit"   // something that steps depend on is down, or back
	NoticeQuiet     NoticeKind = "quiet"     // this worker gave no heartbeat for longer than its leases last
	NoticeStuck     NoticeKind = "stuck"     // a handler ignores its cancellation, and the worker ends
	NoticeLost      NoticeKind = "lost"      // records were no longer in the log when they were to be read
	NoticeTopic     NoticeKind = "topic"     // a topic has grown, is missing, or was created anew
	NoticeMisrouted NoticeKind = "misrouted" // records stand where their keys don't lead: a producer's partitioner differs, or the topic has grown
	NoticeBacklog   NoticeKind = "backlog"   // a partition isn't read since too much of it waits, or is read again
	NoticeGap       NoticeKind = "gap"       // an aggregate waits too long for a missing event of its sequence
	NoticePaused    NoticeKind = "paused"    // an agent was paused, or goes on
)

// Notice is something that happened and that a person may want to see.
type Notice struct {
	Time      time.Time  `json:"time"`
	Kind      NoticeKind `json:"kind"`
	Agent     string     `json:"agent"`
	Topic     string     `json:"topic,omitempty"`
	Partition int32      `json:"partition"`
	Offset    int64      `json:"offset"`
	Subject   string     `json:"subject,omitempty"`
	Text      string     `json:"text"`
}
