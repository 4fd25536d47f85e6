// Package given hands tests what they need: Kafka, PostgreSQL, a browser,
// promtool, by the addresses in the environment, as `make test` sets them. A
// test whose server isn't there fails in continuous integration; elsewhere it
// is skipped, and the end of `make test` says so. It starts nothing and keeps
// no state.
package given

import (
	"os"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/devservices"
)

// Kafka is the addresses of three real brokers.
func Kafka(t testing.TB) []string {
	t.Helper()
	return strings.Split(need(t, "Kafka", devservices.EnvKafka), ",")
}

// Postgres is the connection URL of a real PostgreSQL, of an account that may create databases.
func Postgres(t testing.TB) string {
	t.Helper()
	return need(t, "PostgreSQL", devservices.EnvPostgres)
}

// Chromium is the path of a browser.
func Chromium(t testing.TB) string {
	t.Helper()
	path, err := devservices.FindChromium(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		missing(t, "a browser", devservices.EnvChrome)
	}
	return path
}

// Promtool is the path of Prometheus' promtool.
func Promtool(t testing.TB) string {
	t.Helper()
	path, err := devservices.FindPromtool(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		missing(t, "promtool", devservices.EnvPromtool)
	}
	return path
}

func need(t testing.TB, what, env string) string {
	t.Helper()
	v := os.Getenv(env)
	if v == "" {
		missing(t, what, env)
	}
	return v
}

func missing(t testing.TB, what, env string) {
	t.Helper()
	if devservices.InCI() {
		t.Fatalf("this test needs %s: %s isn't set; run it through make test", what, env)
	}
	t.Skipf("NOT RUN: this test needs %s: run make test, or set %s (make services prints it)", what, env)
}
