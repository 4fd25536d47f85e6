package prove

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/killkit"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
)

// Config says how much is to be proved. Events and Aggregates are required.
type Config struct {
	Events     int
	Aggregates int
	Producers  int           // default 4
	Workers    int           // engines in the node; with two or more their leases also run out now and then; default 2
	Kills      int           // SIGKILLs of the node
	Duration   time.Duration // spread the production over it; 0: over the time that the kills take, so that each hits work
	Data       string        // folder; must be empty or new
	Seed       uint64        // of kills, failures and frosts; 0: drawn, and told
	Limit      time.Duration // for the whole proof; default 30 minutes
	Binary     string        // default: this program
	Env        []string      // for the node
	Pair       *Pair         // where to prove, if not on the embedded broker and ledger
	Logger     *slog.Logger
	Progress   func(Progress) // about once a second; may be nil
}

// Progress is how far a proof is.
type Progress struct {
	Accepted int
	Events   int
	Kills    int
	Phase    string
}

// Verdict is what a proof found. The first four are 0 where the contract held.
type Verdict struct {
	Lost        int64 `json:"lost"`        // accepted events without an effect, counted at each agent, or no longer in the log
	Doubled     int64 `json:"doubled"`     // effects beyond the first
	Disordered  int64 `json:"disordered"`  // effects out of order, made without seeing their predecessor's, or under an epoch that had passed
	Unaccounted int64 `json:"unaccounted"` // differences between what topics hold, what outcomes count and what has effects

	Events     int64    `json:"events"` // accepted: acknowledged to the producers
	Aggregates int      `json:"aggregates"`
	Effects    int64    `json:"effects"`
	Duplicates int64    `json:"duplicates"` // records that were recognised as copies
	Kills      int      `json:"kills"`
	Frosts     int64    `json:"frosts"` // how often a worker's leases were let run out while it went on
	Fenced     int64    `json:"fenced"` // steps that were refused for it
	Seed       uint64   `json:"seed"`
	Elapsed    float64  `json:"elapsed_seconds"`
	Examples   []string `json:"examples"` // of what was found, at most 20

	Pair *PairVerdict `json:"pair,omitempty"` // of a proof on Kafka and PostgreSQL
}

// Clean tells whether the contract held.
func (v Verdict) Clean() bool {
	return v.Lost == 0 && v.Doubled == 0 && v.Disordered == 0 && v.Unaccounted == 0
}

// ErrConfig is wrapped by errors of what a proof was asked to do; then nothing was done.
var ErrConfig = errors.New("this can't be proved")

func (c *Config) setDefaults() error {
	switch {
	case c.Events < 1 || c.Aggregates < 1 || c.Aggregates > c.Events:
		return fmt.Errorf("%w: %d events over %d aggregates: give at least one event for each aggregate", ErrConfig, c.Events, c.Aggregates)
	case c.Kills < 0:
		return fmt.Errorf("%w: %d kills: give 0 or more", ErrConfig, c.Kills)
	}
	workers := 2
	if c.Pair != nil {
		if err := c.Pair.check(); err != nil {
			return err
		}
		c.Pair.setDefaults()
		workers = 4
		if c.Duration <= 0 {
			c.Duration = time.Minute
		}
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&c.Producers, 4}, {&c.Workers, workers}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	c.Producers = min(c.Producers, c.Aggregates)
	if c.Duration <= 0 {
		c.Duration = time.Duration(c.Kills) * (killFirst + killLast) / 2
	}
	if c.Limit <= 0 {
		c.Limit = 30 * time.Minute
	}
	if c.Seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return fmt.Errorf("prove: draw a seed: %w", err)
		}
		c.Seed = binary.LittleEndian.Uint64(b[:]) >> 12 // a number that JSON readers keep
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	return nil
}

// The node is killed between these times after it became ready, and every third time once more while it starts again.
const (
	killFirst = 200 * time.Millisecond
	killLast  = 4 * time.Second
	killEarly = 250 * time.Millisecond
)

// Run proves, and returns what it found; an error says that nothing could be found out.
func Run(ctx context.Context, c Config) (Verdict, error) {
	if err := c.setDefaults(); err != nil {
		return Verdict{}, err
	}
	if err := emptyFolder(c.Data); err != nil {
		return Verdict{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	started := time.Now()
	p := &proof{Config: c, names: plainNames, accepted: newTally(c.Aggregates)}
	judge := p.onOneNode
	if c.Pair != nil {
		judge = p.onPair
	}
	v, err := judge(ctx)
	if err != nil {
		return Verdict{}, fmt.Errorf("prove (seed %d, data in %s): %w", c.Seed, c.Data, err)
	}
	v.Elapsed = time.Since(started).Seconds()
	return v, nil
}

// onOneNode proves on the embedded broker and ledger of one process.
func (p *proof) onOneNode(ctx context.Context) (Verdict, error) {
	if err := p.run(ctx); err != nil {
		return Verdict{}, err
	}
	db, err := sqlite.OpenReadOnly(p.ledgerPath())
	if err != nil {
		return Verdict{}, fmt.Errorf("verify: %w", err)
	}
	defer func() { _ = db.Close() }() // read only
	v, err := p.verify(ctx, db)
	if err != nil {
		return Verdict{}, fmt.Errorf("verify: %w", err)
	}
	return v, nil
}

func emptyFolder(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(path, 0o700)
	}
	if err != nil {
		return fmt.Errorf("%w in %s: %w", ErrConfig, path, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%w in %s: it isn't empty, and a proof counts everything in its folder; name a new one", ErrConfig, path)
	}
	return nil
}

type proof struct {
	Config
	names    names
	brokers  []string
	node     *killkit.Process
	kills    int
	accepted *tally
	held     map[string]holding // what topics hold at the end
	stuck    bool               // nothing moved any more, though not all was settled
}

// run produces while the node is killed, and then lets it come to rest and reads what the log holds.
func (p *proof) run(ctx context.Context) error {
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	p.brokers = []string{addr}
	command := killkit.Command{Name: "node", Path: p.Binary, Args: p.args(), Env: p.Env, Output: filepath.Join(p.Data, "node.log"),
		MaxOutput: 16 << 20, Ready: killkit.Line(readyLine), ReadyWait: time.Minute}
	if p.node, err = killkit.Start(ctx, command); err != nil {
		return err
	}
	defer func() { _ = p.node.Kill() }() // it has ended by itself where all went well
	done := make(chan error, 1)
	producing, stop := context.WithCancel(ctx)
	defer stop()
	go func() { done <- p.produce(producing) }()
	if err := p.killWhile(ctx, done); err != nil {
		return err
	}
	p.tell("settling")
	if err := p.node.Terminate(time.Minute); err != nil {
		return err
	}
	command.Args = append(p.args(), "--settle")
	command.Ready, command.ReadyWait = killkit.Line(restLine), p.Limit
	if p.node, err = killkit.Start(ctx, command); err != nil {
		return err
	}
	p.stuck = strings.Contains(p.node.Tail(), stuckLine)
	if p.held, err = p.audit(ctx); err != nil {
		return err
	}
	return p.node.Terminate(time.Minute)
}

func (p *proof) args() []string {
	return []string{"prove-node", "--data", p.nodeData(), "--broker-listen", p.brokers[0],
		"--workers", strconv.Itoa(p.Workers), "--seed", strconv.FormatUint(p.Seed, 10)}
}

// killWhile kills and restarts the node at random moments until all kills are done and all events are accepted.
func (p *proof) killWhile(ctx context.Context, done <-chan error) error {
	schedule, err := killkit.NewSchedule(p.Seed, func(string, ...any) {})
	if err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var moment <-chan time.Time
	for produced := false; p.kills < p.Kills || !produced; {
		if moment == nil && p.kills < p.Kills {
			moment = time.After(schedule.Between(killFirst, killLast))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-done:
			if err != nil {
				return err
			}
			produced, done = true, nil
		case <-moment:
			moment = nil
			if err := p.kill(ctx, schedule); err != nil {
				return err
			}
		case <-tick.C:
			p.tell("producing")
		}
	}
	return nil
}

// kill kills the node and starts it again; now and then it's killed again on its way up, while it reads back what the
// kill before has left.
func (p *proof) kill(ctx context.Context, schedule *killkit.Schedule) error {
	if err := p.node.Kill(); err != nil {
		return err
	}
	p.kills++
	if p.kills < p.Kills && schedule.Pick(3) == 0 {
		short, cancel := context.WithTimeout(ctx, schedule.Between(0, killEarly))
		err := p.node.Restart(short)
		cancel()
		switch {
		case err == nil: // it was quicker
			return nil
		case ctx.Err() != nil || errors.Is(err, killkit.ErrExited):
			return err
		}
		p.kills++
	}
	return p.node.Restart(ctx)
}

func (p *proof) tell(phase string) {
	p.Progress(Progress{Accepted: p.accepted.value(), Events: p.Events, Kills: p.kills, Phase: phase})
}

// freeAddress finds a loopback port that stays the node's over its restarts.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func (c Config) nodeData() string { return filepath.Join(c.Data, "node") }

// folders are those of all processes that work on the proof.
func (c Config) folders() []string {
	if c.Pair == nil {
		return []string{c.nodeData()}
	}
	all := make([]string, c.Workers)
	for i := range all {
		all[i] = c.workerData(i)
	}
	return all
}

// ledgerPath is where the node keeps its ledger.
func (c Config) ledgerPath() string { return filepath.Join(c.nodeData(), app.LedgerFile) }
