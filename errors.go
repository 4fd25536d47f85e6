package swarmlog

import (
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Errors to be told apart with errors.Is.
var (
	// ErrInUse says that another process runs on the same data folder.
	ErrInUse = ledger.ErrInUse
	// ErrNoRows is what Row.Scan answers where a query found nothing.
	ErrNoRows = ledger.ErrNoRows
	// ErrAgentFailed is wrapped by the error of Run and Stop where an agent stopped for good while the others went on;
	// the error wraps the agent's own as well.
	ErrAgentFailed = app.ErrAgentFailed
)

// Permanent marks an error that another attempt can't mend: the event is dead-lettered at once.
//
// An error without a mark is transient: the step runs again with exponential back-off and full jitter, and the event
// is dead-lettered after Limits.Attempts runs.
func Permanent(err error) error { return fault.As(fault.Permanent, err) }

// Unavailable marks an error of something that the step depends on and that is down for all events alike: the step
// runs again without a limit of attempts, and nothing is dead-lettered for it.
func Unavailable(err error) error { return fault.As(fault.Unavailable, err) }

// Down is Unavailable with the name of what is down, such as "mail.example.com", and how long it asks to be left alone
// (0: it doesn't say). After a few of these in a row the agent pauses and tries that one thing from time to time, until
// a step that needs it succeeds: see Step.Uses. Choose few names (a host, not an address with ids in it), without secrets.
func Down(dependency string, after time.Duration, err error) error {
	return fault.On(dependency, fault.After(after, fault.As(fault.Unavailable, err)))
}

// Refused is Permanent with the name of what refused the event. Where it refuses many in a row and nothing else comes of
// it, the agent pauses instead of dead-lettering all that it reads.
func Refused(dependency string, err error) error {
	return fault.On(dependency, fault.As(fault.Permanent, err))
}

// Fatal marks an error after which the agent must not go on: it stops, the other agents continue, and the event
// stays unhandled.
func Fatal(err error) error { return fault.As(fault.Fatal, err) }
