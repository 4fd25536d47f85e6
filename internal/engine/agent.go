package engine

import (
	"context"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// Handler is what an agent does with one event. It runs outside any
// transaction and may run again: what it wants done it hands to the step.
type Handler func(ctx context.Context, e event.Event, s *Step) error

// OnDead says what happens to later events of an aggregate whose event died.
type OnDead string

const (
	Park OnDead = "park" // they wait behind it (the default)
	Skip OnDead = "skip" // they go on
)

// Agent is one group: what it reads, what it does and within what limits.
type Agent struct {
	Name   string
	Reads  []string // topics
	Emits  []string // topics it may emit to; Step.Emit goes to the first
	Types  []string // event types it handles; empty: all. Others are ignored, and counted so.
	Handle Handler
	Setup  func(ctx context.Context, tx ledger.Tx) error // its own tables; runs at each start
	Weigh  func(e event.Event) int64                     // bytes that a step will hold; nil: the record's size
	Limits Limits
	OnDead OnDead
	Pool   string // of the workers that may run it; "": any

	shadow   bool // nothing that it does takes effect: see Shadow
	forwards bool // the internal agent that moves misrouted records to where they belong
}

// defaultAttempts is how often a step that fails for transient reasons is run.
const defaultAttempts = 8

// Limits bound what an agent does at once. The zero value of a field means its default.
type Limits struct {
	Steps    int           // handlers that run at once; default 64
	Bytes    int64         // weight held until commit, and bytes of records that wait; default 64 MiB. Of it, light steps (up to a quarter each) share a quarter and heavier ones the rest; a step counts as at most three quarters.
	Timeout  time.Duration // for one run of the handler; default 5 minutes
	Attempts int           // runs of a step that fails for transient reasons before it's dead; default 8
	Backoff  time.Duration // first wait, doubled each time with full jitter; default 100 ms
	MaxWait  time.Duration // longest wait; default 30 s
	Hops     int           // how many events may lie between an event and its origin; default 64
	Waiting  int64         // records of a partition that may wait in the backlog before it isn't read any more; default 100,000
	GapWait  time.Duration // how long an aggregate waits for a missing event of its sequence before people are told; default 15 minutes
}

// Source is an agent that reads no topic: it finds things outside and offers
// them as events of its own, each committed as a step with its emissions.
type Source struct {
	Name  string
	Emits []string
	Pool  string // of the workers that may run it; "": any
	Setup func(ctx context.Context, tx ledger.Tx) error
	// Run finds and offers until ctx ends. Returning earlier than that is an error of the source.
	Run func(ctx context.Context, f *Feed) error
}

// Call is the event's step that asks for a model's answer.
type Call struct {
	Fence   ledger.Fence
	Offset  int64 // of the event's record
	Source  string
	EventID string
	Agent   string
	// Occurrence counts how often this run of the step has asked for an address without naming the call, from 1: such
	// calls are told apart by it, and not by their order among calls for other addresses.
	Occurrence func(address [32]byte) int
	Uses       func(dependency string) // says what answers the call, before it's asked; may be nil
}

// Inferrer answers model calls of steps: package inference's Service.
type Inferrer interface {
	Infer(ctx context.Context, c Call, name string, req inference.Request) (inference.Answer, error)
}
