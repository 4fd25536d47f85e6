// Package logkey owns the keys of structured log lines, so that one thing has
// one name wherever it's logged. It is a leaf: it imports nothing.
package logkey

const (
	Address    = "address"
	Agent      = "agent"
	Attempt    = "attempt"
	Bytes      = "bytes"
	Duration   = "duration"
	Epoch      = "epoch"
	Error      = "error"
	EventID    = "event_id"
	EventType  = "event_type"
	Method     = "method"
	Offset     = "offset"
	Outcome    = "outcome"
	Owner      = "owner"
	Partition  = "partition"
	Path       = "path"
	Reason     = "reason"
	Source     = "source"
	Status     = "status"
	Steps      = "steps"
	Subject    = "subject"
	Swarm      = "swarm"
	Topic      = "topic"
	Worker     = "worker"
	Lost       = "lost"
	RetryAfter = "retry_after"
)
