package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const served = small + `
kafka:
  brokers: [kafka-1:9092, kafka-2:9092]
  session: 20s
  rebalance: 2m
  tls: {ca: ca.pem}
  sasl: {mechanism: SCRAM-SHA-512, user: app, password_file: password}
postgres: {dsn: "postgres://me@db/swarm", schema: papers}
worker: {pool: big, lease_time: 5s, listen: off}
accept_risk: [one]
`

func TestFlagsCountBeforeTheEnvironmentBeforeTheFile(t *testing.T) {
	s, err := Parse("/swarms/x/swarm.yaml", []byte(served), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	k := s.Kafka
	if fmt.Sprint(k.Brokers) != "[kafka-1:9092 kafka-2:9092]" || !k.TLS.On || k.TLS.CA != "/swarms/x/ca.pem" ||
		k.Session != 20*time.Second || k.Rebalance != 2*time.Minute || k.SASL.User != "app" || k.SASL.Password != (Key{File: "/swarms/x/password"}) {
		t.Errorf("kafka %+v", k)
	}
	if w := s.Worker; w.Pool != "big" || w.LeaseTime != 5*time.Second || w.Listen != "off" || fmt.Sprint(s.AcceptRisk) != "[one]" {
		t.Errorf("worker %+v, risks %q", w, s.AcceptRisk)
	}
	vars := env(map[string]string{"SWARMLOG_BROKERS": " a:1, b:2 ", "SWARMLOG_TLS": "off", "SWARMLOG_SASL_PASSWORD": "sk-verysecret",
		"SWARMLOG_LEDGER": "postgres://me:sk-verysecret@db/swarm", "SWARMLOG_LEASE_TIME": "20s", "SWARMLOG_DRAIN": "", "SWARMLOG_TLS_CA": "other.pem"})
	s, err = Parse("/swarms/x/swarm.yaml", []byte(served), vars, Flag{"lease-time", "30s"}, Flag{"accept-risk", "x,y"}, Flag{"drain", ""})
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("other.pem")
	if err != nil {
		t.Fatal(err)
	}
	if k = s.Kafka; fmt.Sprint(k.Brokers) != "[a:1 b:2]" || k.TLS.On || k.TLS.CA != here || k.SASL.Password != (Key{Env: "SWARMLOG_SASL_PASSWORD"}) {
		t.Errorf("kafka %+v", k)
	}
	if s.Worker.LeaseTime != 30*time.Second || fmt.Sprint(s.AcceptRisk) != "[x y]" {
		t.Errorf("worker %+v, risks %q", s.Worker, s.AcceptRisk)
	}
	if got := s.Postgres.DSN.String(); got != "environment variable SWARMLOG_LEDGER" || s.Postgres.DSN.InArguments() {
		t.Errorf("the ledger is at %s", got)
	}
	s, err = Parse("/swarms/x/swarm.yaml", []byte(served), vars, Flag{"ledger", "postgres://me:sk-verysecret@other/swarm"})
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := s.Postgres.DSN.Resolve()
	if err != nil || dsn.Reveal() != "postgres://me:sk-verysecret@other/swarm" || !s.Postgres.DSN.InArguments() {
		t.Errorf("the ledger of a flag: %v", err)
	}
	if shown := fmt.Sprintf("%v %+v %#v", s.Settings, s.Settings, s.Settings); strings.Contains(shown, "verysecret") {
		t.Errorf("a secret is shown: %s", shown)
	}
	if err := s.NeedsServers("swarm.yaml"); err != nil {
		t.Error(err)
	}
}

func TestWrongSettingsOutsideTheFileAreNamedByTheirPlaces(t *testing.T) {
	_, err := Parse("swarm.yaml", []byte(served), env(map[string]string{"SWARMLOG_BROKERS": "a", "SWARMLOG_SASL_TOKEN": "sk-verysecret",
		"SWARMLOG_SASL_TOKEN_FILE": "t", "SWARMLOG_LEDGER": "x", "SWARMLOG_LEDGER_FILE": "y"}), Flag{"drain", "1"}, Flag{"pool", "bog"})
	if err == nil {
		t.Fatal("no problem was found")
	}
	for _, want := range []string{
		`environment variable SWARMLOG_BROKERS: broker "a" isn't host:port: write host:port`,
		"environment variable SWARMLOG_SASL_TOKEN_FILE: a second place for the same secret",
		"environment variable SWARMLOG_LEDGER_FILE: a second place for the same secret",
		`--drain: drain is "1": a time needs a unit`,
		`--pool: the worker belongs to pool "bog", which isn't among pools: did you mean "big"?`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't said:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "verysecret") {
		t.Errorf("a secret is shown: %v", err)
	}
	_, err = parseSettings(env(map[string]string{"SWARMLOG_LEDGER_CONNECTIONS": "few"}), []Flag{{"membership", "none"}})
	if err == nil || strings.Contains(err.Error(), ":1:1:") || len(strings.Split(err.Error(), "\n")) != 2 {
		t.Errorf("without a file: %v", err)
	}
}

func TestServersAreNeeded(t *testing.T) {
	s, err := Parse("swarm.yaml", []byte(small), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	err = s.NeedsServers(s.File)
	if err == nil || !strings.Contains(err.Error(), "--brokers") || !strings.Contains(err.Error(), "SWARMLOG_LEDGER") {
		t.Errorf("what is missing: %v", err)
	}
}

func TestWorkersOfOneHostHaveIDsOfTheirOwn(t *testing.T) {
	a, b := Worker{}.WorkerID("one"), Worker{}.WorkerID("two")
	if a == b || !strings.HasSuffix(a, "-one") || !workerRule.MatchString(a) {
		t.Errorf("ids %s and %s", a, b)
	}
	if got := (Worker{ID: "mine"}).WorkerID("x"); got != "mine" {
		t.Errorf("a given id: %s", got)
	}
}

// A password is found in every form in which it's taken.
func TestPasswordsInConnectionStrings(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://me:x@db/s": true, "postgresql://db/s?user=me&password=x": true, "host=db password=x": true,
		"host=db PASSWORD = x": true, "postgres://me:%zz@db": true, "postgres://db/s?sslpassword=x": true,
		"postgres://me@db:5432/s": false, "postgres://db": false, "host=db passfile=/x user=me": false,
	} {
		if got := hasPassword(dsn); got != want {
			t.Errorf("%s: %v", dsn, got)
		}
	}
}
