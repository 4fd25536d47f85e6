package pair

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Two workers share the documents; one is killed in the middle of it and started again. Every page is read once.
func TestPapersThroughTwoWorkersOneOfThemKilled(t *testing.T) {
	t.Parallel()
	t.Run("leases", func(t *testing.T) { twoWorkersOneOfThemKilled(t, "leases") })
	t.Run("kafka", func(t *testing.T) { twoWorkersOneOfThemKilled(t, "kafka") })
}

func twoWorkersOneOfThemKilled(t *testing.T, membership string) {
	t.Parallel()
	const documents = 120
	s := newSwarm(t, documents)
	s.env = append(s.env, "SWARMLOG_MEMBERSHIP="+membership)
	one, two := s.worker("one"), s.worker("two")
	s.eventually(time.Minute, "some pages are read", func() bool { return len(s.pages()) > documents/4 })
	if err := one.Kill(); err != nil {
		t.Fatal(err)
	}
	if n := len(s.pages()); n == 2*documents {
		t.Logf("all pages were out before the kill")
	}
	if err := one.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A third one ends once nothing is left to do anywhere.
	out, code := s.command("run", s.folder, "--worker", "three", "--exit-when-idle", "--json")
	var stopped struct{ Records map[string]int64 }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &stopped); code != 0 || err != nil || stopped.Records["applied"] == 0 || stopped.Records["dead"] != 0 {
		t.Fatalf("the third worker ended with %d, %v: %s", code, err, out)
	}
	s.complete(documents)
	for name, p := range map[string]worker{"one": one, "two": two} {
		if err := p.Terminate(30 * time.Second); err != nil {
			t.Errorf("worker %s: %v", name, err)
		}
	}
	out, code = s.command("search", "uniqueword77", "--json", "--limit", "1")
	if code != 0 || !strings.Contains(out, `"document":"077.txt"`) || !strings.Contains(out, "uniqueword77") {
		t.Errorf("search ended with %d: %s", code, out)
	}
}

// A worker that can't reach PostgreSQL stays up and says so, and goes on by itself: nothing is dead-lettered for it.
func TestWorkerOutlivesAnOutageOfPostgreSQL(t *testing.T) {
	t.Parallel()
	s := newSwarm(t, 5)
	dsn := s.dsn
	link := newLink(t, hostOf(t, dsn))
	s.env = append(s.env, "SWARMLOG_LEDGER="+strings.Replace(dsn, hostOf(t, dsn), link.address, 1))
	w := s.worker("cut-off")
	direct := *s
	direct.env = append(direct.env[:len(direct.env):len(direct.env)], "SWARMLOG_LEDGER="+dsn)
	address := addressOf(t, w)
	direct.eventually(time.Minute, "the first documents are read", func() bool { return len(direct.pages()) == 10 })
	direct.eventually(20*time.Second, "the worker is ready", func() bool { return ready(t, address) == "" })
	link.cut()
	s.documents(5, 12)
	direct.eventually(30*time.Second, "the worker says that PostgreSQL is away", func() bool {
		return strings.Contains(ready(t, address), "PostgreSQL can't be reached since")
	})
	direct.eventually(30*time.Second, "its leases have run out", func() bool { return w.said("leases can't be renewed") })
	if !w.Running() {
		t.Fatalf("the worker ended: %s", w.Tail())
	}
	link.mend()
	direct.eventually(time.Minute, "what came meanwhile is read", func() bool {
		pages := direct.pages()
		return len(pages) == 24 && !slices.ContainsFunc(pages, func(p page) bool { return p.Summary == "" })
	})
	direct.eventually(20*time.Second, "the worker is ready again", func() bool { return ready(t, address) == "" })
	direct.complete(12)
	if err := w.Terminate(30 * time.Second); err != nil {
		t.Error(err)
	}
}

// The second signal ends a worker at once, also while it drains.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSwarm(t, 1)
	link := newLink(t, hostOf(t, s.dsn))
	s.env = append(s.env, "SWARMLOG_LEDGER="+strings.Replace(s.dsn, hostOf(t, s.dsn), link.address, 1))
	w := s.worker("impatient", "--drain", "1m")
	s.eventually(time.Minute, "the worker is at work", func() bool { return len(s.pages()) == 2 })
	link.cut() // so that draining takes long
	signal := func() {
		// Where nothing was left to give back it may have ended by itself after the first.
		if err := syscall.Kill(w.Pid(), syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	signal()
	s.eventually(20*time.Second, "the worker drains", func() bool { return w.said("msg=draining") })
	signal()
	s.eventually(5*time.Second, "the worker has ended", func() bool { return !w.Running() })
}

// What is wrong with settings is named all at once, by its place, and ends with 2.
func TestWrongSettingsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSwarm(t, 1)
	out, code := s.command("run", s.folder, "--lease-time", "5", "--pool", "big", "--listen", "0.0.0.0:1")
	if code != 2 || !strings.Contains(out, "--lease-time: ") || !strings.Contains(out, "--pool: ") {
		t.Errorf("run ended with %d: %s", code, out)
	}
	out, code = s.command("run", s.folder, "--listen", "0.0.0.0:1")
	if code != 2 || !strings.Contains(out, "--listen-public") {
		t.Errorf("run ended with %d: %s", code, out)
	}
	s.env = append(s.env, "SWARMLOG_LEDGER=", "SWARMLOG_BROKERS=nowhere")
	out, code = s.command("check", s.folder)
	if code != 2 || !strings.Contains(out, "environment variable SWARMLOG_BROKERS") {
		t.Errorf("check ended with %d: %s", code, out)
	}
	s.env = append(s.env, "SWARMLOG_LEDGER="+strings.Replace(s.dsn, hostOf(t, s.dsn), "127.0.0.1:1", 1), "SWARMLOG_BROKERS="+strings.TrimPrefix(s.env[0], "SWARMLOG_BROKERS="))
	out, code = s.command("run", s.folder)
	if code != 1 || !strings.Contains(out, "PostgreSQL") {
		t.Errorf("without PostgreSQL run ended with %d: %s", code, out)
	}
}

func hostOf(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the connection URL can't be read")
	}
	return u.Host
}

// addressOf is what a worker's ready line names.
func addressOf(t *testing.T, w worker) string {
	t.Helper()
	b, err := os.ReadFile(w.output)
	_, rest, _ := strings.Cut(string(b), "; http://")
	address, _, ok := strings.Cut(rest, "\n")
	if !ok || err != nil {
		t.Fatalf("no address in %s (%v)", b, err)
	}
	return "http://" + address
}

// ready is why a worker isn't ready, or "".
func ready(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return ""
	}
	var problem struct{ Detail string }
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&problem), os.ErrInvalid); problem.Detail == "" {
		return err.Error()
	}
	return problem.Detail
}
