package kafka

import (
	"strings"
	"testing"
	"time"
)

// FuzzToken : whatever a token endpoint answers, there's a token or an error that says none of it.
func FuzzToken(f *testing.F) {
	for _, body := range []string{`{"access_token":"t","expires_in":3600}`, `{"access_token":"t","token_type":"mac"}`, `{"access_token":"t","expires_in":-1e300}`,
		`{"error":"invalid_client","error_description":"hunter2"}`, `{"error":"hunter2"}`, `<html>`, ``} {
		f.Add(200, body)
		f.Add(401, body)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		token, lasts, err := parseToken(status, []byte(body))
		switch {
		case err == nil && (token == "" || status != 200):
			t.Errorf("%d %q is no token", status, body)
		case lasts < 0 || lasts > 24*time.Hour:
			t.Errorf("%d %q: a token that lasts %s", status, body, lasts)
		case err != nil && strings.Contains(body, "hunter2") && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("the error tells what was answered: %v", err)
		}
	})
}
