package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/letters"
)

// remote are the hands of a swarm that another process runs.
type remote struct {
	address string
	client  *http.Client
}

func newRemote(address string) *remote {
	return &remote{address, &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}}
}

// refused is what the process answered instead.
type refused struct {
	code httpapi.Code
	text string
}

func (r *refused) Error() string { return r.text }

// Unwrap gives back the error that the code stands for, so that callers need not know where it came from.
func (r *refused) Unwrap() error {
	switch r.code {
	case httpapi.CodeNoAgent:
		return control.ErrNoAgent
	case httpapi.CodeNotPaused:
		return control.ErrRunning
	case httpapi.CodeInvalid:
		return letters.ErrFilter
	case httpapi.CodeConflict:
		return control.ErrAtWork
	}
	return nil
}

// ask sends a request and returns the answer's body; body is sent as JSON where it isn't nil.
func (r *remote) ask(ctx context.Context, path string, body any) (io.ReadCloser, error) {
	method, content := http.MethodGet, io.Reader(nil)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		method, content = http.MethodPost, bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.address+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the running swarm: %w; it may have just ended: try again", err)
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var p httpapi.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&p); err != nil || p.Detail == "" {
		return nil, fmt.Errorf("ask the running swarm at %s: it answers %s", r.address, resp.Status)
	}
	text := p.Detail
	for _, e := range p.Errors {
		text += ": " + e.Message
	}
	return nil, &refused{p.Code, text + ". " + p.Next}
}

// object asks for one JSON object.
func (r *remote) object(ctx context.Context, path string, body, answer any) error {
	in, err := r.ask(ctx, path, body)
	if err != nil {
		return err
	}
	defer in.Close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(in).Decode(answer); err != nil {
		return fmt.Errorf("ask the running swarm: read the answer: %w", err)
	}
	return nil
}

// lines asks for JSON lines; decode reads one and tells whether there was one.
func (r *remote) lines(ctx context.Context, path string, body any, each func(*json.Decoder) error) error {
	in, err := r.ask(ctx, path, body)
	if err != nil {
		return err
	}
	defer in.Close()
	d := json.NewDecoder(bufio.NewReaderSize(in, 64<<10))
	for {
		err := each(d)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *remote) Letters(ctx context.Context, f letters.Filter, o letters.Options, yield func(*letters.Letter) error) error {
	q := url.Values{}
	for name, v := range map[string]string{"agent": f.Agent, "topic": f.Topic, "subject": f.Subject, "reason": f.Reason, "reason_matches": f.ReasonMatches} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, at := range map[string]*time.Time{"since": f.Since, "until": f.Until} {
		if at != nil {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Partition != nil {
		q.Set("partition", strconv.Itoa(int(*f.Partition)))
	}
	if f.Offset != nil {
		q.Set("offset", strconv.FormatInt(*f.Offset, 10))
	}
	for name, on := range map[string]bool{"settled": o.Settled, "content": o.Content} {
		if on {
			q.Set(name, "true")
		}
	}
	var read int64
	return r.lines(ctx, "/api/v1/letters?"+q.Encode(), nil, func(d *json.Decoder) error {
		var l letters.Letter
		if err := d.Decode(&l); err != nil {
			return brokenOff(err)
		}
		if read++; o.Progress != nil && read%1024 == 0 {
			o.Progress(letters.Progress{Matched: read})
		}
		return yield(&l)
	})
}

// brokenOff marks what isn't the answer's end as its being cut off.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return err
	}
	return fmt.Errorf("ask the running swarm: the answer broke off: %w", err)
}

func (r *remote) Act(ctx context.Context, verb letters.Verb, f letters.Filter, dry bool, o letters.Options, visit func(*letters.Letter) error) (letters.Account, error) {
	var ask httpapi.ActRequest
	ask.Body.Filter, ask.Body.DryRun = f, dry
	var account *letters.Account
	var failed string
	err := r.lines(ctx, "/api/v1/letters/"+url.PathEscape(string(verb)), ask.Body, func(d *json.Decoder) error {
		var line httpapi.ActLine
		if err := d.Decode(&line); err != nil {
			return brokenOff(err)
		}
		switch {
		case line.Progress != nil && o.Progress != nil:
			o.Progress(*line.Progress)
		case line.Letter != nil && visit != nil:
			return visit(line.Letter)
		case line.Account != nil:
			account, failed = line.Account, line.Error
		}
		return nil
	})
	switch {
	case err == nil && account == nil:
		return letters.Account{}, errors.New("ask the running swarm: the answer broke off; run it again: it goes on where it was")
	case account == nil:
		return letters.Account{}, err
	case err == nil && failed != "":
		err = fmt.Errorf("%s; run it again: it goes on where it was", failed)
	}
	return *account, err
}

func (r *remote) Agents(ctx context.Context) (all []control.AgentRow, err error) {
	err = r.object(ctx, "/api/v1/agents", nil, &all)
	return all, err
}

func (r *remote) Pause(ctx context.Context, agent, reason string) error {
	return r.object(ctx, "/api/v1/agents/"+url.PathEscape(agent)+"/pause", map[string]string{"reason": reason}, nil)
}

func (r *remote) Resume(ctx context.Context, agent string) error {
	return r.object(ctx, "/api/v1/agents/"+url.PathEscape(agent)+"/resume", struct{}{}, nil)
}

// Rewind asks until workers have given the agent's partitions back, or ctx ends.
func (r *remote) Rewind(ctx context.Context, w control.Rewinding, dry bool) (report control.RewindReport, err error) {
	body := map[string]any{"to": w.To, "repeat_effects": w.Repeat, "dry_run": dry}
	if len(w.Topics) > 0 {
		body["topics"] = w.Topics
	}
	for {
		err = r.object(ctx, "/api/v1/agents/"+url.PathEscape(w.Agent)+"/rewind", body, &report)
		if dry || !errors.Is(err, control.ErrAtWork) || ctx.Err() != nil {
			return report, err
		}
		select {
		case <-ctx.Done():
			return report, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (r *remote) Shadow(ctx context.Context, agent, shadow string, examples int) (answer control.ShadowReport, err error) {
	q := url.Values{"shadow": {shadow}, "examples": {strconv.Itoa(examples)}}
	err = r.object(ctx, "/api/v1/agents/"+url.PathEscape(agent)+"/shadow?"+q.Encode(), nil, &answer)
	return answer, err
}

func (r *remote) Recover(ctx context.Context, agents []string, reset bool) (answer control.Recovery, err error) {
	err = r.object(ctx, "/api/v1/recover", map[string]any{"agents": append([]string{}, agents...), "reset": reset}, &answer)
	return answer, err
}
