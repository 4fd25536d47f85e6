package kafka_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

// authority is a certificate authority, with a folder for what it makes.
type authority struct {
	testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB) *authority {
	a := &authority{TB: t, dir: t.TempDir()}
	a.key = a.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	a.must(err)
	a.cert, err = x509.ParseCertificate(der)
	a.must(err)
	a.file = a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	return key
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	a.must(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// issue makes a certificate for a name, and returns its files.
func (a *authority) issue(name string, ips ...net.IP) (cert, key string) {
	k := a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}, IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, k.Public(), a.key)
	a.must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	a.must(err)
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+"-key.pem", "PRIVATE KEY", keyDER)
}

// server is a server's side of TLS, which asks clients for certificates of the authority where mutual says so.
func (a *authority) server(mutual bool, ips ...net.IP) *tls.Config {
	pair, err := tls.LoadX509KeyPair(a.issue("broker.test", ips...))
	a.must(err)
	c := &tls.Config{Certificates: []tls.Certificate{pair}}
	if mutual {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		c.ClientCAs.AddCert(a.cert)
	}
	return c
}

func fake(t testing.TB, opts ...kfake.Opt) (addr string, cluster *kfake.Cluster) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0], c
}

// works opens a connection and sends a record by it.
func works(t testing.TB, opts kafka.Options) {
	t.Helper()
	b, err := kafka.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Create(t.Context(), broker.TopicSpec{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	publish(t, b, "t", 1)
}

// refused opens a connection that must fail soon, with words that say why and without what is secret.
func refused(t testing.TB, opts kafka.Options, why string, secrets ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	b, err := kafka.Open(ctx, opts)
	if err == nil {
		b.Close()
		t.Fatalf("connected, want an error with %q", why)
	}
	if !strings.Contains(err.Error(), why) {
		t.Errorf("error %q, want one with %q", err, why)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %s to fail", took)
	}
	for _, s := range secrets {
		if strings.Contains(err.Error(), s) {
			t.Errorf("the error tells a secret: %v", err)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a, stranger := newAuthority(t), newAuthority(t)
	loopback := net.IPv4(127, 0, 0, 1)
	plainAddr, _ := fake(t, kfake.TLS(a.server(false, loopback)))
	named, _ := fake(t, kfake.TLS(a.server(false)))
	mutual, _ := fake(t, kfake.TLS(a.server(true, loopback)))
	cert, key := a.issue("client.test")
	otherCert, otherKey := stranger.issue("client.test")

	works(t, kafka.Options{Seeds: []string{plainAddr}, TLS: &kafka.TLS{CAFile: a.file}})
	works(t, kafka.Options{Seeds: []string{named}, TLS: &kafka.TLS{CAFile: a.file, ServerName: "broker.test"}})
	works(t, kafka.Options{Seeds: []string{mutual}, TLS: &kafka.TLS{CAFile: a.file, CertFile: cert, KeyFile: key}})

	refused(t, kafka.Options{Seeds: []string{plainAddr}, TLS: &kafka.TLS{}}, "certificate")
	refused(t, kafka.Options{Seeds: []string{plainAddr}, TLS: &kafka.TLS{CAFile: stranger.file}}, "certificate")
	refused(t, kafka.Options{Seeds: []string{named}, TLS: &kafka.TLS{CAFile: a.file}}, "certificate")
	refused(t, kafka.Options{Seeds: []string{mutual}, TLS: &kafka.TLS{CAFile: a.file}}, "connect to kafka")
	refused(t, kafka.Options{Seeds: []string{mutual}, TLS: &kafka.TLS{CAFile: a.file, CertFile: otherCert, KeyFile: otherKey}}, "connect to kafka")
	refused(t, kafka.Options{Seeds: []string{mutual}, TLS: &kafka.TLS{CAFile: a.file, CertFile: cert}}, "both")
	refused(t, kafka.Options{Seeds: []string{mutual}, TLS: &kafka.TLS{CAFile: a.file, CertFile: cert, KeyFile: otherKey}}, "client certificate")
	refused(t, kafka.Options{Seeds: []string{plainAddr}, TLS: &kafka.TLS{CAFile: key}}, "holds no PEM certificate")
	refused(t, kafka.Options{Seeds: []string{plainAddr}, TLS: &kafka.TLS{CAFile: filepath.Join(a.dir, "none")}}, "none")
}

// TestTLSBelow12 : a server that can do no more than TLS 1.1 isn't spoken to.
func TestTLSBelow12(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	old := a.server(false, net.IPv4(127, 0, 0, 1))
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	addr, _ := fake(t, kfake.TLS(old))
	refused(t, kafka.Options{Seeds: []string{addr}, TLS: &kafka.TLS{CAFile: a.file}}, "version")
}

const password = "hunter2-and-more"

func TestSASL(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&locked{w: &log}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, mechanism := range []string{kafka.Plain, kafka.ScramSHA256, kafka.ScramSHA512} {
		addr, _ := fake(t, kfake.TLS(a.server(false, net.IPv4(127, 0, 0, 1))), kfake.EnableSASL(), kfake.Superuser(mechanism, "ann", password))
		opts := kafka.Options{Seeds: []string{addr}, TLS: &kafka.TLS{CAFile: a.file}, Logger: logger}
		with := func(s kafka.SASL) kafka.Options {
			o := opts
			s.Mechanism = mechanism
			o.SASL = &s
			return o
		}
		file := filepath.Join(a.dir, mechanism)
		a.must(os.WriteFile(file, []byte(password+"\n"), 0o600))

		works(t, with(kafka.SASL{User: "ann", Password: kafka.Secret{Value: password}}))
		works(t, with(kafka.SASL{User: "ann", Password: kafka.Secret{File: file}}))
		refused(t, with(kafka.SASL{User: "ann", Password: kafka.Secret{Value: "wrong-secret"}}), "connect to kafka", "wrong-secret", password)
		refused(t, with(kafka.SASL{User: "bob", Password: kafka.Secret{Value: password}}), "connect to kafka", password)
		refused(t, with(kafka.SASL{User: "ann"}), "user and a password")
		refused(t, with(kafka.SASL{User: "ann", Password: kafka.Secret{File: file + "-none"}}), "-none")
		refused(t, opts, "connect to kafka")
	}
	refused(t, kafka.Options{Seeds: []string{"127.0.0.1:1"}, SASL: &kafka.SASL{Mechanism: "GSSAPI"}}, "SCRAM-SHA-512")
	if s := log.String(); strings.Contains(s, password) || strings.Contains(s, "wrong-secret") {
		t.Error("the log tells a secret")
	}
}

// locked lets goroutines share a writer.
type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// bearer makes a cluster say that it takes OAUTHBEARER, and take what accept does. (kfake knows no such mechanism.)
func bearer(c *kfake.Cluster, accept func(token string) bool) {
	c.ControlKey(kmsg.SASLHandshake.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return req.ResponseKind(), nil, true
	})
	c.ControlKey(kmsg.SASLAuthenticate.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		_, rest, _ := strings.Cut(string(r.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes), "auth=Bearer ")
		if token, _, _ := strings.Cut(rest, "\x01"); !accept(token) {
			resp.ErrorCode = 58 // SASL_AUTHENTICATION_FAILED
		}
		return resp, nil, true
	})
}

func TestOAuthBearerFile(t *testing.T) {
	t.Parallel()
	addr, c := fake(t)
	var mu sync.Mutex
	good := "token-one"
	bearer(c, func(token string) bool { mu.Lock(); defer mu.Unlock(); return token == good })
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("token-one\n")
	opts := kafka.Options{Seeds: []string{addr}, SASL: &kafka.SASL{Mechanism: kafka.OAuthBearer, Token: kafka.Secret{File: file}}}
	b, err := kafka.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	mu.Lock()
	good = "token-two"
	mu.Unlock()
	refused(t, opts, "connect to kafka", "token-one")
	write("token-two")
	// The reader's client logs in by what the file holds now.
	r, err := b.Reader("later")
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	works(t, opts)
	refused(t, kafka.Options{Seeds: []string{addr}, SASL: &kafka.SASL{Mechanism: kafka.OAuthBearer}}, "token endpoint")
}

func TestOAuthBearerEndpoint(t *testing.T) {
	t.Parallel()
	addr, c := fake(t)
	bearer(c, func(token string) bool { return strings.HasPrefix(token, "made-") })
	var mu sync.Mutex
	asked := 0
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		id, secret, _ := r.BasicAuth()
		if r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "kafka" || id != "me" || secret != "p%40ss" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":"invalid_client","error_description":"no such secret: %s"}`, secret)
			return
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("made-%d", asked), "token_type": "Bearer", "expires_in": 3600}); err != nil {
			t.Error(err)
		}
	}))
	defer endpoint.Close()
	with := func(client kafka.OAuthClient) kafka.Options {
		return kafka.Options{Seeds: []string{addr}, SASL: &kafka.SASL{Mechanism: kafka.OAuthBearer, Client: &client}}
	}
	works(t, with(kafka.OAuthClient{Endpoint: endpoint.URL, ID: "me", Secret: kafka.Secret{Value: "p@ss"}, Scope: "kafka"}))
	if asked != 1 {
		t.Errorf("%d tokens were asked for, want one for all log-ins", asked)
	}
	refused(t, with(kafka.OAuthClient{Endpoint: endpoint.URL, ID: "me", Secret: kafka.Secret{Value: "wrong-secret"}, Scope: "kafka"}),
		"401 invalid_client", "wrong-secret")
	refused(t, with(kafka.OAuthClient{Endpoint: "http://tokens.example.com", ID: "me", Secret: kafka.Secret{Value: "x"}}), "https")
	refused(t, with(kafka.OAuthClient{Endpoint: endpoint.URL, ID: "me"}), "client secret")
}

func TestSecretsPrintAsNothing(t *testing.T) {
	t.Parallel()
	s := kafka.SASL{Mechanism: kafka.Plain, User: "ann", Password: kafka.Secret{Value: password},
		Client: &kafka.OAuthClient{Secret: kafka.Secret{Value: password}}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("options", "sasl", s, "password", s.Password)
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, printed := range []string{fmt.Sprintf("%v %+v %#v %s", s, s, s, s.Password), fmt.Sprintf("%+v %#v", *s.Client, *s.Client), log.String(), string(text)} {
		if strings.Contains(printed, password) {
			t.Errorf("a secret is printed: %s", printed)
		}
	}
}
