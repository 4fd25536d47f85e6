package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/swarmlog/swarmlog/internal/config"
)

type checkCommand struct {
	File string `arg:"" help:"A swarm.yaml, or the folder that holds one."`
	JSON bool   `name:"json" help:"Print one JSON object: {\"file\", \"ok\", \"problems\": [{\"file\", \"line\", \"column\", \"found\", \"instead\"}]}."`
}

// checkReport is the JSON of a check.
type checkReport struct {
	File     string         `json:"file"`
	OK       bool           `json:"ok"`
	Problems []checkProblem `json:"problems"`
}

type checkProblem struct {
	File    string `json:"file"` // empty: the environment
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Found   string `json:"found"`
	Instead string `json:"instead"`
}

func asProblems(all config.Problems) []checkProblem {
	problems := make([]checkProblem, len(all))
	for i, p := range all {
		problems[i] = checkProblem{p.File, p.Line, p.Col, p.Found, p.Instead}
	}
	return problems
}

// Run checks a swarm.yaml and does nothing else.
func (c *checkCommand) Run(s *streams) error {
	swarm, err := config.Load(c.File)
	var problems config.Problems
	if err != nil && !errors.As(err, &problems) {
		return usage(err)
	}
	if c.JSON {
		lines := json.NewEncoder(s.out)
		lines.SetEscapeHTML(false)
		if werr := lines.Encode(checkReport{File: c.File, OK: err == nil, Problems: asProblems(problems)}); werr != nil {
			return werr
		}
		if err != nil {
			return usage(errSaid)
		}
		return nil
	}
	if err != nil {
		return usage(err)
	}
	command := "up"
	if swarm.NeedsServers(swarm.File) == nil {
		command = "run"
	}
	_, err = fmt.Fprintf(s.out, "%s is fine: swarm %s with %d agents and %d topics.\nRun it: swarmlog %s %s\n",
		swarm.File, swarm.Name, len(swarm.Agents), len(swarm.Topics), command, c.File)
	return err
}
