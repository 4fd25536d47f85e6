package letters

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Filter chooses letters. Zero fields choose all.
type Filter struct {
	Agent         string     `json:"agent,omitempty" doc:"Of this agent"`
	Topic         string     `json:"topic,omitempty" doc:"Of this topic"`
	Subject       string     `json:"subject,omitempty" doc:"Of this aggregate"`
	Reason        string     `json:"reason,omitempty" doc:"Whose reason holds this text"`
	ReasonMatches string     `json:"reason_matches,omitempty" doc:"Whose reason this regular expression (RE2) matches"`
	Since         *time.Time `json:"since,omitempty" doc:"That failed last at this time or later"`
	Until         *time.Time `json:"until,omitempty" doc:"That failed last before this time"`
	Partition     *int32     `json:"partition,omitempty" doc:"Of this partition"`
	Offset        *int64     `json:"offset,omitempty" doc:"Of the record at this offset; with a topic and a partition"`
}

// ErrFilter is wrapped where a filter makes no sense.
var ErrFilter = errors.New("no such choice of dead letters")

// matcher is a filter, checked.
type matcher struct {
	Filter
	reason *regexp.Regexp
}

func (f Filter) matcher() (*matcher, error) {
	m := &matcher{Filter: f}
	if f.ReasonMatches != "" {
		var err error
		if m.reason, err = regexp.Compile(f.ReasonMatches); err != nil {
			return nil, fmt.Errorf("%w: %w; write it in the syntax of RE2", ErrFilter, err)
		}
	}
	if f.Since != nil && f.Until != nil && !f.Since.Before(*f.Until) {
		return nil, fmt.Errorf("%w: since %s isn't before until %s", ErrFilter, f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	if f.Offset != nil && (f.Topic == "" || f.Partition == nil) {
		return nil, fmt.Errorf("%w: an offset needs its topic and partition", ErrFilter)
	}
	return m, nil
}

// place tells whether letters of an agent and a topic may match.
func (m *matcher) place(agent, topic string) bool {
	return (m.Agent == "" || m.Agent == agent) && (m.Topic == "" || m.Topic == topic)
}

func (m *matcher) match(l *Letter) bool {
	switch {
	case !m.place(l.Agent, l.Topic),
		m.Partition != nil && *m.Partition != l.Partition,
		m.Offset != nil && *m.Offset != l.Offset,
		m.Subject != "" && m.Subject != l.Subject,
		m.Reason != "" && !strings.Contains(l.Reason, m.Reason),
		m.reason != nil && !m.reason.MatchString(l.Reason),
		m.Since != nil && (l.Last == nil || l.Last.Before(*m.Since)),
		m.Until != nil && (l.Last == nil || !l.Last.Before(*m.Until)):
		return false
	}
	return true
}
