package telemetry_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

const rulesFolder = "../../deploy/prometheus"

// described lists the names of all metrics that a run can have.
func described(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	list := make(chan *prometheus.Desc, 128)
	r := describing{prometheus.NewRegistry(), list}
	telemetry.NewMetrics(r)
	telemetry.NewCollector(status.SourceFunc(func(context.Context) (status.Status, error) { return status.Status{}, nil }),
		slog.New(slog.DiscardHandler)).Describe(list)
	close(list)
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range list {
		names[name.FindStringSubmatch(d.String())[1]] = true
	}
	if len(names) < 30 {
		t.Fatalf("only %d metrics are described", len(names))
	}
	return names
}

type describing struct {
	*prometheus.Registry
	list chan *prometheus.Desc
}

func (d describing) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		c.Describe(d.list)
	}
}

var metricName = regexp.MustCompile(`\bswarmlog_[a-z_]+`)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRulesNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	exist := described(t)
	for _, file := range []string{"swarmlog.rules.yaml", "swarmlog.rules_test.yaml"} {
		found := metricName.FindAllString(read(t, filepath.Join(rulesFolder, file)), -1)
		if len(found) < 10 {
			t.Errorf("%s names %d metrics", file, len(found))
		}
		for _, name := range found {
			if !exist[strings.TrimSuffix(name, "_bucket")] { // of a histogram
				t.Errorf("%s: there's no metric %s", file, name)
			}
		}
	}
}

func TestEveryMetricIsDocumentedAndEveryDocumentedOneExists(t *testing.T) {
	t.Parallel()
	page := read(t, "../../docs/metrics.md")
	exist := described(t)
	said := map[string]bool{}
	for _, name := range metricName.FindAllString(page, -1) {
		said[name] = true
		if !exist[name] {
			t.Errorf("docs/metrics.md describes %s, which doesn't exist", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(exist)) {
		if !said[name] {
			t.Errorf("docs/metrics.md doesn't describe %s", name)
		}
	}
}

func TestEveryAlertIsTestedAndDocumented(t *testing.T) {
	t.Parallel()
	rules, tests, page := read(t, filepath.Join(rulesFolder, "swarmlog.rules.yaml")), read(t, filepath.Join(rulesFolder, "swarmlog.rules_test.yaml")),
		read(t, "../../docs/metrics.md")
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(alerts) < 10 {
		t.Fatalf("%d alerts found", len(alerts))
	}
	for _, a := range alerts {
		if !strings.Contains(tests, "alertname: "+a[1]+"\n        exp_alerts:\n          - ") {
			t.Errorf("no test has %s fire", a[1])
		}
		if !strings.Contains(page, "| `"+a[1]+"` |") {
			t.Errorf("docs/metrics.md doesn't list %s", a[1])
		}
	}
}

func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool := given.Promtool(t)
	tool := func(folder string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, promtool, args...)
		c.Dir = folder
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := tool(rulesFolder, "check", "rules", "swarmlog.rules.yaml"); err != nil {
		t.Errorf("check rules: %v\n%s", err, out)
	}
	if out, err := tool(rulesFolder, "test", "rules", "swarmlog.rules_test.yaml"); err != nil {
		t.Errorf("test rules: %v\n%s", err, out)
	}
	// A rule that no longer looks at the lag must not pass.
	broken := t.TempDir()
	rules := read(t, filepath.Join(rulesFolder, "swarmlog.rules.yaml"))
	without := strings.Replace(rules, "          and max by (job, agent) (swarmlog_lag_seconds) < 10\n", "", 1)
	if without == rules {
		t.Fatal("the rule about silent discarding no longer looks at the lag")
	}
	for name, text := range map[string]string{"swarmlog.rules.yaml": without, "swarmlog.rules_test.yaml": read(t, filepath.Join(rulesFolder, "swarmlog.rules_test.yaml"))} {
		if err := os.WriteFile(filepath.Join(broken, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := tool(broken, "test", "rules", "swarmlog.rules_test.yaml"); err == nil || !strings.Contains(out, "late") {
		t.Errorf("a broken rule passes its tests: %v\n%s", err, out)
	}
}
