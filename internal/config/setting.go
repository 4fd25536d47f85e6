package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads the values of settings and checks those that hang together.

// source is where a setting stands.
type source int

const (
	fromFile source = iota
	fromEnv
	fromFlag
)

var (
	workerRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	schemaRule = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	// passwordWord is a password in the key=value form of a connection string.
	passwordWord = regexp.MustCompile(`(?i)(^|\s)(ssl)?password\s*=`)
)

func (r *reader) brokers(v *node) []string {
	all := r.texts(v, "brokers")
	for i, b := range all {
		if problem := addressProblem(b); b != "" && problem != "" {
			at := v
			if i < len(v.items) {
				at = v.items[i]
			}
			r.add(at, fmt.Sprintf("broker %q %s", shorten(b), problem), "write host:port, such as kafka-1:9092")
		}
	}
	return all
}

func addressProblem(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return "isn't host:port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "has no port between 1 and 65535"
	}
	return ""
}

func (r *reader) onOff(v *node, what string, to *bool) {
	var word string
	r.choice(v, what, &word, []string{"on", "off", "true", "false"})
	*to = word == "on" || word == "true"
}

// tls notes that TLS was asked for, or refused, in so many words.
func (r *reader) tls(v *node, to *bool) { r.onOff(v, "tls", to) }

func (r *reader) tlsFile(v *node, s *Settings, what string, to *string) {
	r.text(v, what, to)
	*to = r.pathOf(v, *to)
	s.Kafka.TLS.On = true
}

// pathOf makes a path absolute. What stands in the file counts from its folder, all else from the working directory.
func (r *reader) pathOf(v *node, p string) string {
	switch {
	case p == "":
		return ""
	case v.from == "":
		return r.path(p)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return filepath.Clean(p)
	}
	return abs
}

// secretIn notes where a secret is. Two places of one source are one too many; another source replaces it.
func (r *reader) secretIn(v *node, to *Key, k Key) {
	if r.secrets == nil {
		r.secrets = map[*Key]source{}
	}
	if before, ok := r.secrets[to]; ok && before == r.source && !to.IsZero() {
		r.add(v, "a second place for the same secret", "keep one of the two")
		return
	}
	*to, r.secrets[to] = k, r.source
}

func (r *reader) secretEnv(v *node, what string, to *Key) {
	if v.kind != scalar || !envRule.MatchString(v.text) {
		r.add(v, what+" isn't the name of a variable (its text isn't shown)", "write the variable's name, not what it holds")
		return
	}
	r.secretIn(v, to, Key{Env: v.text})
}

func (r *reader) secretFile(v *node, what string, to *Key) {
	var path string
	r.text(v, what, &path)
	if path != "" {
		r.secretIn(v, to, Key{File: r.pathOf(v, path)})
	}
}

// dsn reads a connection string, or where one is: what the environment holds is kept there.
func (r *reader) dsn(v *node, to *DSN) {
	if r.source == fromEnv {
		to.Literal = Secret{}
		r.secretIn(v, &to.From, Key{Env: v.text})
		return
	}
	if v.kind != scalar || v.text == "" {
		r.add(v, "dsn isn't a connection string", "write postgres://USER@HOST:5432/DATABASE")
		return
	}
	if r.source == fromFile && hasPassword(v.text) {
		r.add(v, "dsn holds a password (its text isn't shown)", "keep secrets out of this file: write dsn_env: NAME or dsn_file: PATH, or set PGPASSWORD or PGPASSFILE")
		return
	}
	to.Literal, to.From = Secret{v.text}, Key{}
}

// hasPassword tells whether a connection string, in either form, holds one.
func hasPassword(dsn string) bool {
	if rest, ok := strings.CutPrefix(dsn, "postgres"); ok && strings.Contains(rest, "://") {
		u, err := url.Parse(dsn)
		if err != nil {
			return strings.Contains(dsn, "@") // nobody can tell; better to refuse
		}
		_, has := u.User.Password()
		return has || u.Query().Has("password") || u.Query().Has("sslpassword")
	}
	return passwordWord.MatchString(dsn)
}

func (r *reader) schema(v *node, to *string) {
	if v.kind != scalar || !schemaRule.MatchString(v.text) {
		r.add(v, fmt.Sprintf("schema is %s", v), "write at most 63 lower-case letters, digits and underscores")
		return
	}
	*to = v.text
}

func (r *reader) journal(v *node, to *string) {
	if v.kind != scalar || !topicRule.MatchString(v.text) || v.text == "." || v.text == ".." {
		r.add(v, fmt.Sprintf("journal is %s", v), "write the name of a topic (at most 200 letters, digits, dots, hyphens and underscores), or off")
		return
	}
	*to = v.text
}

func (r *reader) workerID(v *node, to *string) {
	if v.kind != scalar || !workerRule.MatchString(v.text) {
		r.add(v, fmt.Sprintf("id of the worker is %s", v), "write at most 100 letters, digits, dots, hyphens and underscores, beginning with a letter or digit")
		return
	}
	*to = v.text
}

// settingsKeys are the parts of a swarm.yaml that hold settings.
func (r *reader) settingsKeys(s *Settings, into map[string]func(k, v *node)) {
	for _, part := range []string{"kafka", "postgres", "worker"} {
		into[part] = func(_, v *node) { r.section(s, part, v) }
	}
	for _, one := range settings {
		if one.key != "" && !strings.Contains(one.key, ".") {
			into[one.key] = func(_, v *node) { r.apply(one, s, v) }
		}
	}
}

// checkSettings looks at what only all of them tell.
func (r *reader) checkSettings(s *Settings, pools []string) {
	if dsn, from := r.at["postgres.dsn"], r.first("postgres.dsn_file", "postgres.dsn_env"); dsn != nil && from != nil && dsn.from == "" && from.from == "" {
		r.add(from, "dsn is written in two ways", "keep one of the two")
	}
	if !s.Postgres.DSN.From.IsZero() { // the environment names a place instead of what the file says
		s.Postgres.DSN.Literal = Secret{}
	}
	r.checkTLS(&s.Kafka.TLS)
	r.checkSASL(&s.Kafka.SASL)
	if pool := s.Worker.Pool; pool != "" && pools != nil && !slices.Contains(pools, pool) {
		r.add(r.at["worker.pool"], fmt.Sprintf("the worker belongs to pool %q, which isn't among pools", shorten(pool)), oneOf(pool, pools))
	}
}

func (r *reader) checkTLS(t *TLS) {
	if word := r.at["kafka.tls"]; word != nil && (word.text == "off" || word.text == "false") {
		t.On = false
	}
	if (t.Cert == "") != (t.Key == "") {
		r.add(r.first("kafka.tls.cert", "kafka.tls.key"), "tls has a certificate or a key without the other", "write both cert and key, or neither")
	}
}

func (r *reader) checkSASL(s *SASL) {
	at := r.first("kafka.sasl.mechanism", "kafka.sasl.user", "kafka.sasl.password_file", "kafka.sasl.password_env", "kafka.sasl.token_file", "kafka.sasl.token_env")
	switch s.Mechanism {
	case "":
		if r.at["kafka.sasl.mechanism"] == nil && (s.User != "" || !s.Password.IsZero() || !s.Token.IsZero()) {
			r.add(at, "sasl has no mechanism", "write mechanism: and one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or set SWARMLOG_SASL_MECHANISM")
		}
	case OAuthBearer:
		r.checkToken(at, s)
	default:
		if s.User == "" {
			r.add(at, s.Mechanism+" has no user", "write user:, or set SWARMLOG_SASL_USER")
		}
		if s.Password.IsZero() {
			r.add(at, s.Mechanism+" has no password", "write password_file: PATH or password_env: NAME, or set SWARMLOG_SASL_PASSWORD")
		}
	}
}

func (r *reader) checkToken(at *node, s *SASL) {
	switch {
	case s.Token.IsZero() && s.TokenURL == "":
		r.add(at, "OAUTHBEARER has no token", "write token_file: PATH, token_env: NAME or token_url: ADDRESS, or set SWARMLOG_SASL_TOKEN")
	case !s.Token.IsZero() && s.TokenURL != "":
		r.add(r.at["kafka.sasl.token_url"], "OAUTHBEARER has a token and an address to get one from", "keep one of the two")
	case s.TokenURL != "" && (s.Client == "" || s.ClientSecret.IsZero()):
		r.add(r.at["kafka.sasl.token_url"], "token_url has no client to ask as", "write client: and client_secret_file: or client_secret_env:, or set SWARMLOG_SASL_CLIENT and SWARMLOG_SASL_CLIENT_SECRET")
	}
}

func (r *reader) tokenURL(v *node, to *string) {
	var text string
	r.text(v, "token_url", &text)
	if problem := urlProblem(text); text != "" && problem != "" {
		r.add(v, "token_url "+problem, "write the address of the token endpoint, https://HOST/PATH, without a user or a secret")
		return
	}
	*to = text
}

// first is where the first of some settings that is set stands, or nil.
func (r *reader) first(keys ...string) *node {
	for _, k := range keys {
		if n := r.at[k]; n != nil {
			return n
		}
	}
	return nil
}

// NeedsServers tells what is missing for a run on servers of one's own, or is nil.
func (s *Settings) NeedsServers(file string) error {
	var missing Problems
	if len(s.Kafka.Brokers) == 0 {
		missing = append(missing, Problem{File: file, Line: 1, Col: 1, Found: "no broker is named",
			Instead: "write kafka: {brokers: [HOST:9092]}, set SWARMLOG_BROKERS or give --brokers"})
	}
	if s.Postgres.DSN.IsZero() {
		missing = append(missing, Problem{File: file, Line: 1, Col: 1, Found: "no PostgreSQL is named",
			Instead: "write postgres: {dsn_file: PATH}, set SWARMLOG_LEDGER or give --ledger postgres://USER@HOST:5432/DATABASE"})
	}
	if missing == nil {
		return nil
	}
	return missing
}

// WorkerID is the worker's id: the given one, or one made of the host's name and what is drawn, which no other has.
func (w Worker) WorkerID(drawn string) string {
	if w.ID != "" {
		return w.ID
	}
	host, err := os.Hostname()
	if err != nil || !workerRule.MatchString(host) {
		host = "worker"
	}
	return host[:min(len(host), 80)] + "-" + drawn
}
