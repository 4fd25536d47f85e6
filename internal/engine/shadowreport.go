package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Verdict is how an emission of a shadow and of its primary compare.
type Verdict string

const (
	VerdictEqual       Verdict = "equal"        // both made it, with equal digests and to the same topic
	VerdictDiffers     Verdict = "differs"      // both made it, with other content or to another topic
	VerdictOnlyPrimary Verdict = "only primary" // the shadow has handled the event and didn't make it
	VerdictOnlyShadow  Verdict = "only shadow"  // the primary has handled the event and didn't make it
	VerdictFailed      Verdict = "failed"       // the shadow's handler failed for good
	VerdictWaiting     Verdict = "waiting"      // one of the two isn't there yet
)

// ShadowExample is one emission that they don't agree about.
type ShadowExample struct {
	Verdict     Verdict `json:"verdict"`
	ID          string  `json:"id"`
	Type        string  `json:"type,omitempty"`
	Subject     string  `json:"subject,omitempty"`
	Topic       string  `json:"topic,omitempty"`         // that the shadow would emit to
	OtherTopic  string  `json:"primary_topic,omitempty"` // that the primary emitted to
	EventSource string  `json:"event_source,omitempty"`  // of the event that was handled
	EventID     string  `json:"event_id,omitempty"`
	Reason      string  `json:"reason,omitempty"` // of a failure
}

// ShadowReport is how far a shadow and its primary agree.
type ShadowReport struct {
	Primary  string            `json:"primary"`
	Shadow   string            `json:"shadow"`
	Counts   map[Verdict]int64 `json:"counts"`
	Examples []ShadowExample   `json:"examples"` // of what isn't equal and doesn't wait, a few of each verdict
}

// shadowSettles is how long what the primary emitted may be on its way to the comparer.
const shadowSettles = 30 * time.Second

// ReportShadow compares what a shadow would have emitted with what its primary did emit: counts, and at most a number of
// examples of each verdict but equal and waiting. Now is compared with when rows were noted.
func ReportShadow(ctx context.Context, l ledger.Ledger, primary, shadow string, examples int, now time.Time) (ShadowReport, error) {
	r := ShadowReport{Primary: primary, Shadow: shadow, Counts: map[Verdict]int64{}}
	past, err := pastBy(ctx, l, primary)
	if err != nil {
		return r, err
	}
	behind, err := isBehind(ctx, l, shadow, primary)
	if err != nil {
		return r, err
	}
	if err := l.Setup(ctx, setupShadow); err != nil { // nothing may have been noted yet
		return r, fmt.Errorf("compare %s with %s: %w", shadow, primary, err)
	}
	err = l.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		r.Counts, r.Examples = map[Verdict]int64{}, nil
		rows, err := tx.Query(ctx, `SELECT id, event_source, event_id, read_topic, read_partition, read_offset, subject, type,
			mine, mine_topic, silent, failure, theirs, theirs_topic, at FROM shadow_emission WHERE shadow = $1 ORDER BY at, id`, shadow)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e ShadowExample
			var topic, mine, theirs string
			var partition, offset, silent, at int64
			if err := rows.Scan(&e.ID, &e.EventSource, &e.EventID, &topic, &partition, &offset, &e.Subject, &e.Type,
				&mine, &e.Topic, &silent, &e.Reason, &theirs, &e.OtherTopic, &at); err != nil {
				return err
			}
			old := now.Sub(time.UnixMilli(at)) >= shadowSettles
			switch {
			case e.Reason != "":
				e.Verdict = VerdictFailed
			case mine != "" && theirs != "" && mine == theirs && e.Topic == e.OtherTopic:
				e.Verdict = VerdictEqual
			case mine != "" && theirs != "":
				e.Verdict = VerdictDiffers
			case theirs != "" && (silent != 0 || (old && !behind)):
				e.Verdict = VerdictOnlyPrimary
			case mine != "" && old && past(topic, int32(partition), offset):
				e.Verdict = VerdictOnlyShadow
			case mine == "" && theirs == "":
				continue // neither emits it
			default:
				e.Verdict = VerdictWaiting
			}
			r.Counts[e.Verdict]++
			if e.Verdict != VerdictEqual && e.Verdict != VerdictWaiting && r.Counts[e.Verdict] <= int64(examples) {
				r.Examples = append(r.Examples, e)
			}
		}
		return rows.Err()
	})
	if err != nil {
		return r, fmt.Errorf("compare %s with %s: %w", shadow, primary, err)
	}
	return r, nil
}

// pastBy tells whether a group has finished an offset. Of topics by one name the latest counts that has come so far.
func pastBy(ctx context.Context, l ledger.Ledger, group string) (func(topic string, partition int32, offset int64) bool, error) {
	leases, err := l.Leases(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("look up how far %s is: %w", group, err)
	}
	return func(topic string, partition int32, offset int64) bool {
		for _, of := range leases {
			if of.Topic == topic && of.Partition == partition && (offset < of.Next || of.Finished.Contains(offset)) {
				return true
			}
		}
		return false
	}, nil
}

// isBehind tells whether a shadow has yet to read what its primary has read.
func isBehind(ctx context.Context, l ledger.Ledger, shadow, primary string) (bool, error) {
	mine, err := l.Leases(ctx, shadow)
	if err != nil {
		return false, fmt.Errorf("look up how far %s is: %w", shadow, err)
	}
	theirs, err := l.Leases(ctx, primary)
	if err != nil {
		return false, fmt.Errorf("look up how far %s is: %w", primary, err)
	}
	next := map[ledger.Key]int64{}
	for _, m := range mine {
		m.Group = primary
		next[m.Key] = m.Next
	}
	for _, t := range theirs {
		if next[t.Key] < t.Next {
			return true, nil
		}
	}
	return false, nil
}

// ForgetShadow removes what a shadow has noted. It's a function for ledger.Ledger.Setup.
func ForgetShadow(shadow string) func(context.Context, ledger.Tx) error {
	return func(ctx context.Context, tx ledger.Tx) error {
		if err := setupShadow(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM shadow_emission WHERE shadow = $1`, shadow)
		return err
	}
}
