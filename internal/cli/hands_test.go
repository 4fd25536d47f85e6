package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/letters"
)

// swarm is a swarm on a data folder, whose agent fails at BadEvents until it's mended, and commands on it.
type swarm struct {
	t       *testing.T
	data    string
	app     *app.App
	mended  atomic.Bool
	handled atomic.Int64
}

func (s *swarm) start() {
	s.t.Helper()
	a, err := app.Start(s.t.Context(), app.Config{Name: "hands", Data: s.data, Listen: "127.0.0.1:0", LeaseTime: 2 * time.Second,
		Agents: []engine.Agent{{Name: "reader", Reads: []string{"in"}, Handle: func(_ context.Context, e event.Event, _ *engine.Step) error {
			if e.Type == "BadEvent" && !s.mended.Load() {
				return fault.Permanentf("no good")
			}
			s.handled.Add(1)
			return nil
		}}}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.app = a
	s.t.Cleanup(s.stop)
}

func (s *swarm) stop() {
	if s.app == nil {
		return
	}
	if err := s.app.Stop(context.Background()); err != nil {
		s.t.Error(err)
	}
	s.app = nil
}

func (s *swarm) publish(events ...event.Event) {
	s.t.Helper()
	if err := s.app.Publish(s.t.Context(), "in", events...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *swarm) settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if err := s.app.Settled(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// do runs a command on the folder and returns what it printed; it must end with the code.
func (s *swarm) do(code int, args ...string) string {
	s.t.Helper()
	return s.answering("", code, args...)
}

func (s *swarm) answering(answer string, code int, args ...string) string {
	s.t.Helper()
	var out, errOut bytes.Buffer
	if got := Main(append(args, "--data", s.data), strings.NewReader(answer), &out, &errOut); got != code {
		s.t.Fatalf("%v ends with %d, expected %d:\n%s%s", args, got, code, out.String(), errOut.String())
	}
	return out.String() + errOut.String()
}

// jsonLines reads JSON lines, and nothing else.
func jsonLines[T any](t *testing.T, s string) (all []T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	for d.More() {
		var v T
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%v: %s", err, s)
		}
		all = append(all, v)
	}
	return all
}

func (s *swarm) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Commands do the same to a data folder that a process runs on and to one that nobody does.
func TestDlqCommands(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"while it runs": true, "while nobody does": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &swarm{t: t, data: filepath.Join(t.TempDir(), "data")}
			s.start()
			s.publish(event.New("BadEvent", "a", 1), event.New("GoodEvent", "a", 2), event.New("BadEvent", "b", 1), event.New("BadEvent", "c", "<&>"))
			s.settle()
			if !running {
				s.stop()
			}
			got := jsonLines[letters.Letter](t, s.do(0, "dlq", "list", "--json"))
			if len(got) != 3 {
				t.Fatalf("listed are %+v", got)
			}
			if text := s.do(0, "dlq", "list", "--aggregate", "a"); !strings.Contains(text, "parked (1 behind)  a  no good") {
				t.Errorf("for people: %s", text)
			}
			if text := s.do(0, "dlq", "list", "--reason", "another"); !strings.Contains(text, "No dead letter") {
				t.Errorf("none: %s", text)
			}
			place := jsonLines[letters.Letter](t, s.do(0, "dlq", "list", "--json", "--aggregate", "c"))[0]
			record := fmt.Sprintf("%s/%d@%d", place.Topic, place.Partition, place.Offset)
			if text := s.do(0, "dlq", "show", record); !strings.Contains(text, "no good") || !strings.Contains(text, "<&>") {
				t.Errorf("show: %s", text)
			}
			if shown := jsonLines[letters.Letter](t, s.do(0, "dlq", "show", record, "--json")); len(shown) != 1 || shown[0].Content == nil {
				t.Errorf("show --json: %+v", shown)
			}
			s.do(2, "dlq", "show", "in/0@99")
			s.do(2, "dlq", "show", "in")
			if text := s.do(2, "dlq", "redrive"); !strings.Contains(text, "--all") {
				t.Errorf("without a choice: %s", text)
			}
			if text := s.do(2, "dlq", "list", "--reason-matches", "("); !strings.Contains(text, "RE2") {
				t.Errorf("a wrong expression: %s", text)
			}
			s.do(2, "dlq", "list", "--since", "yesterday")

			folder := t.TempDir()
			if text := s.do(0, "dlq", "export", "--folder", folder, "--json"); !strings.Contains(text, `"letters":3`) {
				t.Errorf("export: %s", text)
			}
			if files, err := filepath.Glob(filepath.Join(folder, "reader", "in", "*.value")); err != nil || len(files) != 3 {
				t.Errorf("exported are %v, %v", files, err)
			}
			if lines := jsonLines[letters.Letter](t, s.do(0, "dlq", "export")); len(lines) != 3 || lines[0].Content == nil {
				t.Errorf("exported are %+v", lines)
			}
			if text := s.do(0, "dlq", "redrive", "--all", "--dry-run"); !strings.Contains(text, "3 would be redriven with 1 records behind") || !strings.Contains(text, "parked") {
				t.Errorf("dry run: %s", text)
			}
			s.mended.Store(true)
			if a := jsonLines[letters.Account](t, s.do(0, "dlq", "skip", "--aggregate", "b", "--json")); len(a) != 1 || a[0].Done != 1 || a[0].Left != 2 {
				t.Errorf("skip: %+v", a)
			}
			if text := s.do(0, "dlq", "redrive", "--agent", "reader"); !strings.Contains(text, "2 dead letters waited, 2 of them chosen: 2 redriven with 1 records behind them. 0 wait still") {
				t.Errorf("redrive: %s", text)
			}
			if !running {
				s.start()
			}
			s.until("what was redriven is handled", func() bool { return s.handled.Load() == 3 })
			s.settle()
			if text := s.do(0, "dlq", "list"); !strings.Contains(text, "No dead letter") {
				t.Errorf("at the end: %s", text)
			}
			if all := jsonLines[letters.Letter](t, s.do(0, "dlq", "list", "--settled", "--json")); len(all) != 3 || all[0].State != letters.Settled {
				t.Errorf("settled: %+v", all)
			}
		})
	}
}

func TestAgentCommands(t *testing.T) {
	t.Parallel()
	s := &swarm{t: t, data: filepath.Join(t.TempDir(), "data")}
	s.start()
	s.publish(event.New("GoodEvent", "a", 1), event.New("GoodEvent", "b", 1))
	s.settle()
	start := time.Now()
	all := jsonLines[control.AgentRow](t, s.do(0, "agent", "list", "--json"))
	if len(all) != 1 || all[0].Paused || all[0].Outcomes.Applied != 2 || all[0].Lag == nil || *all[0].Lag != 0 || all[0].Held != all[0].Partitions {
		t.Fatalf("agents are %+v", all)
	}
	s.do(2, "agent", "resume", "nobody")
	if text := s.do(1, "agent", "rewind", "reader", "--to", "1h", "--yes"); !strings.Contains(text, "agent pause reader") {
		t.Errorf("rewind of one that isn't paused: %s", text)
	}
	if text := s.do(0, "agent", "pause", "reader", "--reason", "look at it", "--wait", "30s"); !strings.Contains(text, "paused") || !strings.Contains(text, "look at it") {
		t.Errorf("pause: %s", text)
	}
	s.publish(event.New("GoodEvent", "c", 1))
	if text := s.answering("no\n", 2, "agent", "rewind", "reader", "--to", start.Add(-time.Hour).Format(time.RFC3339)); !strings.Contains(text, "At most 2 records will be delivered again") {
		t.Errorf("rewind that wasn't confirmed: %s", text)
	}
	s.do(2, "agent", "rewind", "reader", "--to", "1h", "--json")
	s.do(2, "agent", "rewind", "reader", "--to", "2999-01-01", "--dry-run")
	s.do(2, "agent", "rewind", "reader", "--to", "1h", "--topic", "other", "--dry-run")
	if r := jsonLines[control.RewindReport](t, s.do(0, "agent", "rewind", "reader", "--to", "1h", "--json", "--yes")); len(r) != 1 || !r[0].Done || r[0].Back != 2 || r[0].Forgotten != 0 {
		t.Fatalf("rewind: %+v", r)
	}
	if s.handled.Load() != 2 {
		t.Errorf("a paused agent has handled %d", s.handled.Load())
	}
	s.do(0, "agent", "resume", "reader")
	s.goesOn()
	if got := s.handled.Load(); got != 3 {
		t.Errorf("%d events were handled; what was applied must be duplicates, and the new one handled", got)
	}
	s.do(0, "agent", "pause", "reader", "--wait", "30s")
	if text := s.answering("yes\n", 0, "agent", "rewind", "reader", "--to", "1h", "--repeat-effects"); !strings.Contains(text, "WILL BE REPEATED") || !strings.Contains(text, "3 applied events were forgotten") {
		t.Errorf("rewind with repeats: %s", text)
	}
	s.do(0, "agent", "resume", "reader")
	s.goesOn()
	if got := s.handled.Load(); got != 6 {
		t.Errorf("%d events were handled in all, expected each of 3 once more", got)
	}
	if failed := s.app.Failed(); len(failed) > 0 {
		t.Errorf("after rewinding: %v", failed)
	}
	// The same on a folder that nobody runs on: its swarm's name is known there.
	s.stop()
	if r := jsonLines[control.RewindReport](t, s.do(0, "agent", "rewind", "reader", "--to", "1h", "--json", "--dry-run")); len(r) != 1 || r[0].Back != 3 || r[0].Done {
		t.Errorf("plan: %+v", r)
	}
}

func TestRecoverCommand(t *testing.T) {
	t.Parallel()
	s := &swarm{t: t, data: filepath.Join(t.TempDir(), "data")}
	s.start()
	s.publish(event.New("GoodEvent", "a", 1))
	s.settle()
	s.stop()
	backup := s.copyLedger()
	s.start()
	s.publish(event.New("GoodEvent", "a", 2), event.New("GoodEvent", "a", 3))
	s.settle()
	s.stop()
	if text := s.do(0, "recover"); !strings.Contains(text, "didn't go back") {
		t.Errorf("before: %s", text)
	}
	if err := os.WriteFile(filepath.Join(s.data, app.LedgerFile), backup, 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.until("the agent stops", func() bool { return len(s.app.Failed()) > 0 })
	if err := s.app.Failed()["reader"]; !strings.Contains(err.Error(), "swarmlog recover") {
		t.Errorf("it stopped with %v", err)
	}
	if text := s.do(1, "recover"); !strings.Contains(text, "2 records will be handled again") || !strings.Contains(text, "--yes") {
		t.Errorf("recover: %s", text)
	}
	_ = s.app.Stop(context.Background()) // tells of the agent that stopped
	s.app = nil
	r := jsonLines[control.Recovery](t, s.do(0, "recover", "--yes", "--json"))
	if len(r) != 1 || r[0].Records != 2 || !r[0].Reset || r[0].Partitions[0].Since == nil || r[0].Gone != 0 {
		t.Fatalf("recovery: %+v", r)
	}
	s.start()
	s.settle()
	if got := s.handled.Load(); got != 5 {
		t.Errorf("%d events were handled, expected 3, and 2 of them again", got)
	}
	if text := s.do(0, "recover"); !strings.Contains(text, "didn't go back") {
		t.Errorf("afterwards: %s", text)
	}
}

// goesOn waits until an agent that was resumed is at work again and has settled what there is: while it's paused nobody
// waits for it.
func (s *swarm) goesOn() {
	s.t.Helper()
	s.until("the agent holds its partitions again and has no lag", func() bool {
		all := jsonLines[control.AgentRow](s.t, s.do(0, "agent", "list", "--json"))
		return len(all) == 1 && all[0].Held == all[0].Partitions && all[0].Lag != nil && *all[0].Lag == 0
	})
	s.settle()
}

func (s *swarm) copyLedger() []byte {
	s.t.Helper()
	if _, err := os.Stat(filepath.Join(s.data, app.LedgerFile+"-wal")); err == nil {
		s.t.Fatal("the ledger was closed and has a log beside it: a copy of its file alone isn't whole")
	}
	b, err := os.ReadFile(filepath.Join(s.data, app.LedgerFile))
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func TestMomentOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2026-03-04T08:00:00Z": now.Add(-time.Hour), "90m": now.Add(-90 * time.Minute), "2d": now.Add(-48 * time.Hour),
		"2026-03-01": time.Date(2026, 3, 1, 0, 0, 0, 0, time.Local), "2026-03-01 07:30": time.Date(2026, 3, 1, 7, 30, 0, 0, time.Local),
	} {
		if got, err := momentOf("--to", s, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %v, %v; expected %v", s, got, err, want)
		}
	}
	for _, s := range []string{"soon", "-5m", "d", "3.5d", "2026-13-01"} {
		if got, err := momentOf("--to", s, now); err == nil {
			t.Errorf("%s was read as %v", s, got)
		}
	}
}
