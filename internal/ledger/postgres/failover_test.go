//go:build unix

package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/ledger"
)

// servers are a primary and a stand-by of its own.
type servers struct {
	t       *testing.T
	primary string // address
	dsn     string // of both
	bin     string
	data    string // folders
	standby string
	port    string // of the stand-by
	owner   *syscall.Credential
	conns   string
	config  *pgx.ConnConfig
	follows *osexec.Cmd
}

func newServers(t *testing.T) *servers {
	t.Helper()
	p := &servers{t: t, primary: ownServer(t)}
	c := connect(t, p.primary)
	p.config = c.Config()
	if err := c.QueryRow(t.Context(), "SELECT current_setting('data_directory'), current_setting('max_connections'), setting FROM pg_config() WHERE name = 'BINDIR'").Scan(&p.data, &p.conns, &p.bin); err != nil {
		t.Fatal(err)
	}
	p.standby = filepath.Join(filepath.Dir(p.data), "standby") // goes with the server's folder
	at, err := os.Stat(p.data)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := at.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		p.owner = &syscall.Credential{Uid: s.Uid, Gid: s.Gid}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, p.port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	p.run("pg_basebackup", "-D", p.standby, "-R", "-X", "stream", "-c", "fast", "-h", p.config.Host, "-p", fmt.Sprint(p.config.Port), "-U", p.config.User)
	p.dsn = fmt.Sprintf("host=%[1]s,%[1]s port=%[2]d,%[3]s user=%[4]s password=%[5]s dbname=postgres sslmode=disable", p.config.Host, p.config.Port, p.port, p.config.User, p.config.Password)
	t.Cleanup(p.stopStandby)
	return p
}

func (p *servers) command(name string, args ...string) *osexec.Cmd {
	cmd := osexec.CommandContext(context.Background(), filepath.Join(p.bin, name), args...)
	cmd.Dir = filepath.Dir(p.data)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+p.config.Password, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner}
	return cmd
}

func (p *servers) run(name string, args ...string) {
	p.t.Helper()
	if out, err := p.command(name, args...).CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// follow starts the stand-by, and waits until it has all that the primary has, or has come up alone.
func (p *servers) follow(alone bool) {
	p.t.Helper()
	p.follows = p.command("postgres", "-D", p.standby, "-c", "port="+p.port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "max_connections="+p.conns) // as many as the primary has
	var said lines
	p.follows.Stderr = &said
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Log(said.String())
		}
	})
	if err := p.follows.Start(); err != nil {
		p.t.Fatal(err)
	}
	until(p.t, "the stand-by is up", func() bool { return p.ask(p.port, "SELECT pg_is_in_recovery()") == "true" })
	until(p.t, "the stand-by has caught up", func() bool {
		return alone || p.ask(fmt.Sprint(p.config.Port), "SELECT coalesce(bool_or(replay_lsn = pg_current_wal_lsn()), false) FROM pg_stat_replication") == "true"
	})
}

// ask asks one of the servers, and is "" where it doesn't answer.
func (p *servers) ask(port, query string) string {
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, strings.Replace(p.dsn, fmt.Sprintf("host=%[1]s,%[1]s port=%[2]d,%[3]s", p.config.Host, p.config.Port, p.port), "host="+p.config.Host+" port="+port, 1))
	if err != nil {
		return ""
	}
	defer c.Close(ctx)
	var v any
	if err := c.QueryRow(ctx, query).Scan(&v); err != nil {
		return ""
	}
	return fmt.Sprint(v)
}

func (p *servers) stopStandby() {
	if p.follows != nil {
		_ = p.follows.Process.Signal(syscall.SIGQUIT)
		_ = p.follows.Wait()
		p.follows = nil
	}
}

// failOver ends the primary as a crash does, and makes the stand-by the primary.
func (p *servers) failOver() {
	p.t.Helper()
	p.run("pg_ctl", "stop", "-D", p.data, "-m", "immediate", "-w")
	if p.follows == nil {
		p.follow(true)
	}
	until(p.t, "the stand-by is promoted", func() bool { return p.ask(p.port, "SELECT pg_promote(true, 20)") == "true" })
}

// A real fail-over. A stand-by that had everything goes on, with one line in the log; one that lacks the last commits
// is noticed at the next heartbeat, and nothing is committed on it.
func TestFailOver(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			t.Parallel()
			p := newServers(t)
			var log lines
			db, err := Open(t.Context(), Options{DSN: p.dsn, EffectTimeout: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			setup(t, db, effectTable)
			f := acquire(t, db, 0)
			mustCommit(t, db, oneStep(f, 0))
			p.follow(false)
			if s, err := Inspect(t.Context(), Options{DSN: p.primary}); err != nil || len(s.Standbys) != 1 || s.Standbys[0].Sync != "async" || s.Standbys[0].State != "streaming" {
				t.Errorf("stand-bys are %+v, %v", s.Standbys, err)
			}
			if lost {
				p.stopStandby()
			}
			mustCommit(t, db, oneStep(f, 1))
			until(t, "the stand-by has it", func() bool {
				return lost || p.ask(p.port, "SELECT count(*) FROM effect") == "2"
			})
			p.failOver()
			beat := func() error { return second(db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting)) }
			if lost {
				until(t, "the heartbeat notices", func() bool { err = beat(); return err != nil && strings.Contains(err.Error(), "went back") })
				wantBack(t, "beat", err)
				_, err = db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 1)}})
				wantBack(t, "commit", err)
				return
			}
			until(t, "the heartbeat comes through", func() bool { err = beat(); return err == nil })
			mustCommit(t, db, oneStep(f, 2))
			wantOnce(t, db, 3)
			if !strings.Contains(log.String(), "another server or timeline") {
				t.Errorf("the log says %q", log.String())
			}
			if s, err := Inspect(t.Context(), Options{DSN: p.dsn}); err != nil || len(s.Lives) != 2 || s.InRecovery {
				t.Errorf("lives are %+v, %v", s.Lives, err)
			}
		})
	}
}
