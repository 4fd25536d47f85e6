package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/doctor"
)

type doctorCommand struct {
	Swarm        string        `arg:"" help:"A swarm.yaml, or the folder that holds one."`
	Brokers      []string      `help:"Addresses of Kafka brokers (host:port) instead of those that the swarm names; also SWARMLOG_BROKERS."`
	Ledger       string        `help:"PostgreSQL's connection string instead of the swarm's; also SWARMLOG_LEDGER, which keeps a password out of the list of processes."`
	AcceptRisk   []string      `help:"Names of checks whose findings are accepted: they are shown, and don't count for the exit code."`
	RecoveryTime time.Duration `help:"How long an outage and catching up with it may take: topics must keep records for that long. Default: 24h."`
	JSON         bool          `name:"json" help:"Print one JSON object: {\"findings\": [{\"check\", \"severity\", \"promise\", \"object\", \"found\", \"wanted\", \"mend\"}], …}."`
	LogLevel     string        `default:"error" enum:"debug,info,warn,error" help:"Least level of log lines on standard error: debug, info, warn or error."`
}

// doctorReport is the JSON of a look.
type doctorReport struct {
	Swarm    string           `json:"swarm"`
	Checks   int              `json:"checks"`
	Worst    doctor.Severity  `json:"worst"` // of findings that aren't accepted; "": none
	Accepted []string         `json:"accepted"`
	Findings []doctor.Finding `json:"findings"`
}

// errWarns and errLoses are wrapped where findings are worth a warning, or lose data.
var (
	errWarns = errors.New("there are warnings")
	errLoses = errors.New("data can be lost")
)

// Run looks, and says what it found.
func (c *doctorCommand) Run(ctx context.Context, s *streams) error {
	swarm, err := config.Load(c.Swarm, config.Flag{Name: "brokers", Value: strings.Join(c.Brokers, ",")}, config.Flag{Name: "ledger", Value: c.Ledger},
		config.Flag{Name: "accept-risk", Value: strings.Join(c.AcceptRisk, ",")})
	if err != nil {
		return usage(err)
	}
	accepted := swarm.AcceptRisk
	if err := doctor.Refused(nil, accepted); err != nil {
		return usage(err)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usage(err)
	}
	seen, err := app.Examine(ctx, swarm, c.RecoveryTime, slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: level})))
	if errors.Is(err, app.ErrNothingToLookAt) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	findings := doctor.Examine(seen)
	counted := slices.DeleteFunc(slices.Clone(findings), func(f doctor.Finding) bool { return slices.Contains(accepted, f.Check) })
	r := doctorReport{Swarm: swarm.Name, Checks: len(doctor.Checks()), Worst: doctor.Worst(counted), Accepted: append([]string{}, accepted...), Findings: findings}
	if err := c.print(s.out, r); err != nil {
		return err
	}
	switch r.Worst {
	case doctor.LosesData:
		return fmt.Errorf("%w: %w", errLoses, errSaid)
	case doctor.Warning:
		return fmt.Errorf("%w: %w", errWarns, errSaid)
	}
	return nil
}

func (c *doctorCommand) print(w io.Writer, r doctorReport) error {
	if c.JSON {
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		return lines.Encode(r)
	}
	var b strings.Builder
	counts := map[doctor.Severity]int{}
	for _, f := range r.Findings {
		counts[f.Severity]++
		note := ""
		if slices.Contains(r.Accepted, f.Check) {
			note = " (accepted)"
		}
		fmt.Fprintf(&b, "%s  %s  %s%s\n", strings.ReplaceAll(string(f.Severity), "_", " "), f.Check, f.Object, note)
		fmt.Fprintf(&b, "    found:  %s\n    wanted: %s\n", f.Found, f.Wanted)
		if f.Promise != "" {
			fmt.Fprintf(&b, "    breaks: %s\n", f.Promise)
		}
		fmt.Fprintf(&b, "    mend:   %s\n", f.Mend)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "%d checks of swarm %s, and nothing to mend.\n", r.Checks, r.Swarm)
	} else {
		fmt.Fprintf(&b, "%d checks of swarm %s: %d findings lose data, %d warn, %d inform.\n", r.Checks, r.Swarm,
			counts[doctor.LosesData], counts[doctor.Warning], counts[doctor.Info])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
