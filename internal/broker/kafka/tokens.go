package kafka

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	tokenWait  = 15 * time.Second // for an answer of the token endpoint
	tokenBytes = 1 << 20          // largest answer that is read
)

// tokens gets tokens, and keeps the last one while it's good.
type tokens struct {
	of   OAuthClient
	http *http.Client

	mu    sync.Mutex // held while a token is asked for: those who also need one wait for it
	last  string
	until time.Time
}

func newTokens(of OAuthClient) (*tokens, error) {
	u, err := url.Parse(of.Endpoint)
	if err != nil || !private(u) || u.Host == "" {
		return nil, errors.New("the SASL token endpoint must be an https URL")
	}
	if of.ID == "" || !of.Secret.IsSet() {
		return nil, errors.New("the SASL token endpoint needs a client id and a client secret: set both")
	}
	if _, err := of.Secret.read(); err != nil {
		return nil, fmt.Errorf("read the SASL client secret: %w", err)
	}
	trusted, err := roots(of.CAFile)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}
	transport.DisableKeepAlives = true // one request in many minutes
	return &tokens{of: of, http: &http.Client{
		Transport: transport,
		Timeout:   tokenWait,
		// A redirect would carry the secret to where nobody said it may go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// get is a token that is good for a while yet.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != "" && time.Now().Before(t.until) {
		return t.last, nil
	}
	token, lasts, err := t.ask(ctx)
	if err != nil {
		return "", err
	}
	t.last, t.until = token, time.Now().Add(lasts*4/5)
	return token, nil
}

// ask gets a token, and for how long it's good. What the endpoint answers is never part of an error, but for the code
// that OAuth gives it.
func (t *tokens) ask(ctx context.Context) (string, time.Duration, error) {
	secret, err := t.of.Secret.read()
	if err != nil {
		return "", 0, fmt.Errorf("read the SASL client secret: %w", err)
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if t.of.Scope != "" {
		form.Set("scope", t.of.Scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.of.Endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, errors.New("the token endpoint's URL is wrong")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(t.of.ID), url.QueryEscape(secret))
	resp, err := t.http.Do(req)
	if err != nil {
		return "", 0, fmt.Errorf("ask the token endpoint: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenBytes))
	if err != nil {
		return "", 0, fmt.Errorf("read the token endpoint's answer: %w", err)
	}
	return parseToken(resp.StatusCode, body)
}

// parseToken reads an answer of a token endpoint (RFC 6749, section 5).
func parseToken(status int, body []byte) (string, time.Duration, error) {
	var answer struct {
		Token   string  `json:"access_token"`
		Type    string  `json:"token_type"`
		Expires float64 `json:"expires_in"`
		Error   string  `json:"error"`
	}
	err := json.Unmarshal(body, &answer)
	switch {
	case status != http.StatusOK:
		return "", 0, fmt.Errorf("the token endpoint answered %d %s: check the client id, its secret and the scope", status, oauthCode(answer.Error))
	case err != nil:
		return "", 0, errors.New("the token endpoint answered no JSON: check its URL")
	case answer.Token == "":
		return "", 0, errors.New("the token endpoint answered without access_token: check its URL")
	case answer.Type != "" && !strings.EqualFold(answer.Type, "bearer"):
		return "", 0, errors.New("the token endpoint gives tokens of another type than bearer")
	}
	// Seconds beyond a day, or none at all, aren't believed.
	seconds := min(max(answer.Expires, 0), 24*60*60)
	return answer.Token, time.Duration(seconds * float64(time.Second)), nil
}

// oauthCode is an error code of OAuth, or nothing where it's none: free text might quote what was sent.
func oauthCode(code string) string {
	switch code {
	case "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope":
		return code
	}
	return "without an error code"
}
