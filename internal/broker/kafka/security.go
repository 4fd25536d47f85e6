package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Secret is a value, or the file that holds it. A file is read anew whenever the value is needed, so that it may
// change; a line end at its end isn't part of it. A Secret prints as nothing but that it's set.
type Secret struct {
	Value string
	File  string
}

// IsSet tells whether there's a value or a file.
func (s Secret) IsSet() bool { return s.Value != "" || s.File != "" }

func (s Secret) String() string {
	if !s.IsSet() {
		return ""
	}
	return "(secret)"
}

// GoString keeps %#v from printing the value.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// LogValue keeps the value out of logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the value out of what is encoded.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// read is the secret's value.
func (s Secret) read() (string, error) {
	if s.File == "" {
		return s.Value, nil
	}
	b, err := os.ReadFile(s.File)
	if err != nil {
		return "", err // it names the file
	}
	v := strings.TrimRight(string(b), "\r\n")
	if v == "" {
		return "", fmt.Errorf("%s is empty", s.File)
	}
	return v, nil
}

// TLS says how connections are kept private: TLS 1.2 at least, the server's certificate verified. The zero value
// trusts the system's roots and shows no certificate.
type TLS struct {
	CAFile     string // PEM certificates to trust instead of the system's roots
	CertFile   string // PEM certificate, with its chain, to show to brokers; needs KeyFile
	KeyFile    string // PEM key of CertFile, not encrypted. Both are read anew at each connection.
	ServerName string // the name that certificates must have; default: the host that is connected to
}

// config reads what TLS names, so that what is missing is told before anything connects.
func (t TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	var err error
	if c.RootCAs, err = roots(t.CAFile); err != nil {
		return nil, err
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("a client certificate needs both its certificate file and its key file")
	}
	if t.CertFile != "" {
		show := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("read the client certificate %s and its key %s: %w", t.CertFile, t.KeyFile, err)
			}
			return &pair, nil
		}
		if _, err := show(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return show() }
	}
	return c, nil
}

// roots are the certificates of a file; nil, the system's, where there's none.
func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // nil is the system's roots
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the certificates to trust: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the certificates to trust: %s holds no PEM certificate", file)
	}
	return pool, nil
}

// Mechanisms of SASL.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

// SASL says who logs in, and how.
type SASL struct {
	Mechanism string // one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
	User      string // of PLAIN and SCRAM
	Password  Secret // of PLAIN and SCRAM

	// OAUTHBEARER takes a token as it is, or gets one from an endpoint. A token file is read anew at each log-in.
	Token  Secret
	Client *OAuthClient
}

// OAuthClient gets tokens by OAuth's client credentials grant (RFC 6749, section 4.4), a new one when the last one is
// about to expire.
type OAuthClient struct {
	Endpoint string // URL of the token endpoint: https, or http on a loopback address
	ID       string
	Secret   Secret
	Scope    string // default: none is asked for
	CAFile   string // PEM certificates to trust instead of the system's roots
}

// mechanism checks what is set, and is what kgo logs in by.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	switch s.Mechanism {
	case Plain, ScramSHA256, ScramSHA512:
		if s.User == "" || !s.Password.IsSet() {
			return nil, fmt.Errorf("SASL %s needs a user and a password: set both", s.Mechanism)
		}
		if _, err := s.Password.read(); err != nil {
			return nil, fmt.Errorf("read the SASL password: %w", err)
		}
		return s.byPassword(), nil
	case OAuthBearer:
		token, err := s.token()
		if err != nil {
			return nil, err
		}
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			t, err := token(ctx)
			if err != nil {
				return oauth.Auth{}, fmt.Errorf("get a token to log in with: %w", err)
			}
			return oauth.Auth{Token: t}, nil
		}), nil
	}
	return nil, fmt.Errorf("SASL mechanism %q is none: set PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", s.Mechanism)
}

func (s SASL) byPassword() sasl.Mechanism {
	password := func() (string, error) {
		p, err := s.Password.read()
		if err != nil {
			return "", fmt.Errorf("read the SASL password: %w", err)
		}
		return p, nil
	}
	if s.Mechanism == Plain {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			p, err := password()
			return plain.Auth{User: s.User, Pass: p}, err
		})
	}
	by := scram.Sha256
	if s.Mechanism == ScramSHA512 {
		by = scram.Sha512
	}
	return by(func(context.Context) (scram.Auth, error) {
		p, err := password()
		return scram.Auth{User: s.User, Pass: p}, err
	})
}

// token is what OAUTHBEARER logs in with, each time it does.
func (s SASL) token() (func(context.Context) (string, error), error) {
	switch {
	case s.Token.IsSet() && s.Client != nil:
		return nil, errors.New("SASL OAUTHBEARER takes a token or a token endpoint: set one of them")
	case s.Token.IsSet():
		if _, err := s.Token.read(); err != nil {
			return nil, fmt.Errorf("read the SASL token: %w", err)
		}
		return func(context.Context) (string, error) { return s.Token.read() }, nil
	case s.Client != nil:
		c, err := newTokens(*s.Client)
		if err != nil {
			return nil, err
		}
		return c.get, nil
	}
	return nil, errors.New("SASL OAUTHBEARER needs a token or a token endpoint: set one of them")
}

// security is how connections are kept private, and who logs in.
func (o Options) security() ([]kgo.Opt, error) {
	var opts []kgo.Opt
	if o.TLS != nil {
		c, err := o.TLS.config()
		if err != nil {
			return nil, fmt.Errorf("set up TLS to kafka: %w", err)
		}
		opts = append(opts, kgo.DialTLSConfig(c))
	}
	if o.SASL != nil {
		m, err := o.SASL.mechanism()
		if err != nil {
			return nil, fmt.Errorf("set up the log-in to kafka: %w", err)
		}
		if o.TLS == nil && o.SASL.Mechanism != ScramSHA256 && o.SASL.Mechanism != ScramSHA512 {
			o.Logger.Warn("logging in without TLS: whoever sees the connection sees the secret", "mechanism", o.SASL.Mechanism)
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

// private tells whether a URL may carry a secret.
func private(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}
