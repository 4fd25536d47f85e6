package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

const (
	script = `<script>document.title="pwned"</script>.html`
	image  = `<img src=x onerror=alert(1)>`
	arabic = "تقرير سنوي ٢٠٢٤.pdf"
	emoji  = "Q3 review 👩‍👩‍👧‍👦 🚀 final (2).pdf"
	spoof  = "invoice_\u202efdp.exe"
)

var began = time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// A scene is a run to look at. tick counts the looks.
type scene func(tick int64) status.Status

func base(state status.State, elapsed time.Duration) status.Status {
	return status.Status{
		Swarm: "papers", State: state, Started: began, Time: began.Add(elapsed),
		Model:  "built-in model: extractive summaries and hashed n-gram vectors; set OPENAI_BASE_URL or models: in swarm.yaml for a real one",
		Broker: status.Broker{Address: "127.0.0.1:9092"},
		Ledger: status.Ledger{Path: "./.swarmlog/ledger.db"},
	}
}

func empty(int64) status.Status {
	s := base(status.Starting, 400*time.Millisecond)
	return s
}

var chain = []struct{ name, kind, topic string }{
	{"finder", "source", ""}, {"splitter", "built-in", "documents"}, {"reader", "model", "pages"},
	{"embedder", "model", "pages"}, {"indexer", "built-in", "readings"},
}

func busy(tick int64) status.Status {
	s := base(status.Running, 83*time.Second+time.Duration(tick)*time.Second)
	done := 12_480 + 1_822*tick
	wave := math.Sin(float64(tick)/5) * 240
	s.Documents, s.Pages = 1_904, done/3
	s.StepsPerSecond, s.TimeLeftSeconds = 1822+wave, ptr(34.0)
	s.Records = ledger.Counters{Applied: done, Duplicate: 41, Skipped: 3, Ignored: 220, Dead: 4, Waiting: 2}
	s.Inference = ledger.InferenceTotals{Calls: 8_021, Reused: 117, InDoubt: 1}
	for i, c := range chain {
		a := status.Agent{Name: c.name, Kind: c.kind, State: status.AgentRunning, Rate: 300 + 60*float64(i), Outcomes: ledger.Counters{Applied: done / 5, Duplicate: int64(8 * i)}}
		if c.topic == "" {
			a.State, a.Rate, a.Outcomes = status.AgentIdle, 0, ledger.Counters{Applied: 1_904}
			s.Agents = append(s.Agents, a)
			continue
		}
		a.InFlight, a.Queued, a.WeightBytes = int64(12*i), int64(400/i), int64(i)*9_300_000
		for p := range int32(4) {
			lag := int64((i*1700+int(p)*911)%4200) + 3
			a.Partitions = append(a.Partitions, status.Partition{Topic: c.topic, Partition: p, Epoch: 3, Next: 18_000 + 400*int64(p), End: 18_000 + 400*int64(p) + lag,
				Lag: &lag, LagSeconds: ptr(float64(lag) / 90), Lanes: 14 + int64(p), Outbox: int64(p) * 12, OutboxSeconds: 0.12, OldestStepSeconds: 0.8 * float64(p)})
		}
		s.Agents = append(s.Agents, a)
	}
	reader, embedder := &s.Agents[2], &s.Agents[3]
	reader.Outcomes.Dead, reader.Outcomes.Waiting, reader.Outcomes.Ignored, reader.Outcomes.Skipped = 3, 2, 220, 3
	reader.Partitions[1].Parked = 1
	embedder.State, embedder.Reason = status.AgentStopped, "the model at http://127.0.0.1:8080/v1 answers 503, and no other is configured"
	reader.Lanes = []status.Lane{
		{Subject: "annual-report-2024.pdf#88", Topic: "pages", Partition: 2, Queued: 211, WeightBytes: 48_000_000, Attempt: 3, RunningSeconds: 74},
		{Subject: emoji + "#3", Topic: "pages", Partition: 1, Queued: 2, WeightBytes: 12_000, Attempt: 1, RunningSeconds: 1.4},
		{Subject: arabic + "#1", Topic: "pages", Partition: 0, WeightBytes: 4_100, Attempt: 1, RunningSeconds: 0.31},
		{Subject: "a/very/deep/folder/" + strings.Repeat("long-name-without-any-space-", 6) + ".txt#12", Topic: "pages", Partition: 3, WeightBytes: 900, Attempt: 2},
	}
	s.DeadLetters = deadLetters()
	s.Warnings = []string{"4 documents could not be read; each is listed under dead letters with its reason."}
	s.Broker.LogBytes, s.Ledger.Bytes = 412_000_000, 96_500_000
	return s
}

func deadLetters() []status.DeadLetter {
	at := time.Now().UTC()
	return []status.DeadLetter{
		{Agent: "splitter", Topic: "documents", Partition: 1, Offset: 4, Subject: script, Time: at, Reason: "page 3: expected UTF-8, found " + image + " at byte 17: save the file as UTF-8 and it is read again"},
		{Agent: "splitter", Topic: "documents", Partition: 0, Offset: 120, Subject: emoji, Time: at.Add(-9 * time.Second), Reason: "the PDF is encrypted: save a copy without a password"},
		{Agent: "splitter", Topic: "documents", Partition: 3, Offset: 7, Subject: arabic, Time: at.Add(-40 * time.Second), Reason: "الملف فارغ: the file is empty"},
		{Agent: "reader", Topic: "pages", Partition: 2, Offset: 99, Subject: spoof, Time: at.Add(-90 * time.Second),
			Reason: "8 attempts failed, the last with: " + strings.Repeat("upstream connect error or disconnect/reset before headers; ", 6)},
	}
}

func idle(int64) status.Status {
	s := busy(0)
	s.State, s.StepsPerSecond, s.TimeLeftSeconds, s.Warnings, s.DeadLetters = status.Idle, 0, ptr(0.0), nil, nil
	s.Records.Dead, s.Records.Waiting = 0, 0
	for i := range s.Agents {
		a := &s.Agents[i]
		a.State, a.Reason, a.Rate, a.InFlight, a.Queued, a.WeightBytes, a.Lanes = status.AgentIdle, "", 0, 0, 0, 0, nil
		a.Outcomes.Dead, a.Outcomes.Waiting = 0, 0
		for j := range a.Partitions {
			p := &a.Partitions[j]
			p.Next, p.Lag, p.LagSeconds, p.Lanes, p.Parked, p.Outbox, p.OldestStepSeconds = p.End, ptr(int64(0)), nil, 0, 0, 0, 0
		}
	}
	return s
}

func broken(int64) status.Status {
	s := busy(0)
	s.State, s.StepsPerSecond, s.TimeLeftSeconds = status.Failed, 0, nil
	s.Agents[4].State, s.Agents[4].Reason = status.AgentStopped, "its SQL ended the transaction (COMMIT inside a step): correct the agent and start again"
	for i := range s.Agents[4].Partitions {
		s.Agents[4].Partitions[i].Lag, s.Agents[4].Partitions[i].End = nil, -1
	}
	s.Warnings = append(s.Warnings, "The agent indexer stopped. The other agents go on; its records wait in the log.",
		"The disk that holds ./.swarmlog has 310 MiB left: free some space, or the broker stops taking records.")
	s.Broker.Health = []string{"310 MiB free on the disk of the log"}
	one := s.DeadLetters
	s.DeadLetters = nil
	for i := range 100 {
		d := one[i%len(one)]
		d.Offset = int64(i)
		s.DeadLetters = append(s.DeadLetters, d)
	}
	s.Records.Dead = 2_311
	return s
}

func happenings(r *recent.Ring) {
	for i, h := range []recent.Happening{
		{Kind: "lease", Agent: "reader", Topic: "pages", Partition: 2, Text: "partition taken with epoch 3"},
		{Kind: "document", Agent: "splitter", Subject: "annual-report-2024.pdf", Text: "split into 412 pages"},
		{Kind: "document", Agent: "splitter", Subject: emoji, Text: "split into 3 pages"},
		{Kind: "retry", Level: recent.Warn, Agent: "embedder", Subject: "annual-report-2024.pdf#88", Topic: "pages", Partition: 2, Offset: 9_182, Text: "attempt 2 failed: 503 Service Unavailable; again in 400 ms"},
		{Kind: "dead", Level: recent.Error, Agent: "splitter", Subject: script, Topic: "documents", Partition: 1, Offset: 4, Text: "not UTF-8: " + image},
		{Kind: "stall", Level: recent.Warn, Text: "the disk was busy: commits waited 1.2 s"},
		{Kind: "dead", Level: recent.Error, Agent: "reader", Subject: spoof, Text: "8 attempts failed"},
	} {
		h.Time = time.Now().Add(time.Duration(i-7) * time.Second)
		r.Add(h)
	}
}

func search(_ context.Context, q string, limit int) ([]httpapi.Hit, error) {
	if q == "broken" {
		return nil, errors.New("disk gone")
	}
	if q == "nothing" {
		return nil, nil
	}
	hits := []httpapi.Hit{
		{Document: "annual-report-2024.pdf", Page: 88, Score: 0.9312, Excerpt: "Delivery is decided once: each record is applied exactly once, whatever crashes. What was promised to the auditors on page 12 holds here too."},
		{Document: emoji, Page: 3, Score: 0.7127, Excerpt: "…the team applied the change exactly as written <b>and</b> shipped it."},
		{Document: arabic, Page: 1, Score: 0.6481, Excerpt: "نُفّذ كل سجل مرة واحدة بالضبط exactly once، مهما حدث."},
		{Document: script, Page: 2, Score: 0.41, Excerpt: image + " exactly what it says."},
	}
	return hits[:min(limit, len(hits))], nil
}

// site is a page with a scene behind it.
type site struct {
	*httptest.Server
	looks   atomic.Int64
	streams atomic.Int64 // open now
	failed  atomic.Bool
	ring    *recent.Ring
}

func serve(t testing.TB, show scene) *site {
	t.Helper()
	s := &site{ring: recent.New(512, time.Now)}
	api := httpapi.New(httpapi.Options{
		Status: status.SourceFunc(func(context.Context) (status.Status, error) {
			if s.failed.Load() {
				return status.Status{}, fmt.Errorf("the ledger can't be read")
			}
			return show(s.looks.Add(1)), nil
		}),
		Events: s.ring, Search: search, Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		Pages: func(context.Context) iter.Seq2[httpapi.Page, error] { return func(func(httpapi.Page, error) bool) {} },
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/events" {
			s.streams.Add(1)
			defer s.streams.Add(-1)
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}
