package devservices

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// oldestPostgres is the oldest release that the ledger supports.
const oldestPostgres = 14

const postgresUser = "swarmlog"

type postgresServer struct{}

func (postgresServer) name() string { return Postgres }
func (postgresServer) env() string  { return EnvPostgres }

func (postgresServer) answers(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return "", errors.New("the PostgreSQL address can't be read; write postgres://user:password@host:port/database")
	}
	where := fmt.Sprintf("%s:%d", config.Host, config.Port) // the address itself holds a password
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", fmt.Errorf("connect to PostgreSQL at %s: %w", where, err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var one, number int
	if err := conn.QueryRow(ctx, "SELECT 1, current_setting('server_version_num')::int").Scan(&one, &number); err != nil {
		return "", fmt.Errorf("ask PostgreSQL at %s: %w", where, err)
	}
	if number/10000 < oldestPostgres {
		return "", fmt.Errorf("PostgreSQL at %s is version %d; %d or newer is needed", where, number/10000, oldestPostgres)
	}
	return fmt.Sprintf("PostgreSQL %d.%d", number/10000, number%10000), nil
}

func (postgresServer) native(ctx context.Context, d *desk, i *instance) error {
	bin, err := d.postgresBin(ctx)
	if err != nil {
		return err
	}
	// PostgreSQL refuses to run as root, and the account that it runs as can't see into root's cache folder: as
	// root, its data is in a temporary folder.
	account, err := unprivileged("postgres", "nobody")
	if err != nil {
		return fmt.Errorf("PostgreSQL refuses to run as root: %w", err)
	}
	parent := d.path("run")
	if account != nil {
		parent = os.TempDir()
	} else if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	folder, err := os.MkdirTemp(parent, "swarmlog-postgres-")
	if err != nil {
		return fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	i.Folders = append(i.Folders, folder)
	password := newPassword()
	passwordFile := filepath.Join(folder, "password")
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write PostgreSQL's password: %w", err)
	}
	if account != nil {
		if err := errors.Join(os.Chown(folder, int(account.Uid), int(account.Gid)),
			os.Chown(passwordFile, int(account.Uid), int(account.Gid))); err != nil {
			return fmt.Errorf("hand PostgreSQL's folder over: %w", err)
		}
	}
	as := func(c *exec.Cmd) *exec.Cmd {
		c.Dir = folder
		c.Env = append(os.Environ(), "HOME="+folder, "LC_ALL=C")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: account}
		return c
	}
	data := filepath.Join(folder, "data")
	if _, err := runs(ctx, readyLimit, func(ctx context.Context) *exec.Cmd {
		return as(exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser, "--pwfile", passwordFile,
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums"))
	}); err != nil {
		return fmt.Errorf("make a database folder: %w", err)
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	cmd := as(exec.Command(filepath.Join(bin, "postgres"), append([]string{"-D", data}, postgresFlags(ports[0])...)...))
	p, err := spawn(cmd, d.path("logs", "postgres.log"), syscall.SIGINT) // SIGINT: a fast shutdown
	if err != nil {
		return err
	}
	i.Processes = append(i.Processes, p)
	i.Address = postgresURL(password, ports[0])
	return nil
}

// postgresFlags are the settings that differ from PostgreSQL's own, or that the ledger's promises rest on.
func postgresFlags(port int) []string {
	return []string{
		"-c", "listen_addresses=127.0.0.1",
		"-c", "port=" + strconv.Itoa(port),
		"-c", "unix_socket_directories=",
		"-c", "fsync=on",
		"-c", "synchronous_commit=on",
		"-c", "full_page_writes=on",
		"-c", "max_connections=200",
	}
}

func postgresURL(password string, port int) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(postgresUser, password), Host: "127.0.0.1:" + strconv.Itoa(port),
		Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

func newPassword() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// postgresBin finds the folder with initdb and postgres of a release that will do, and installs one where that's
// possible.
func (d *desk) postgresBin(ctx context.Context) (string, error) {
	if bin := findPostgres(ctx); bin != "" {
		return bin, nil
	}
	if err := d.install(ctx, fmt.Sprintf("PostgreSQL %d or newer is needed", oldestPostgres), "postgresql"); err != nil {
		return "", err
	}
	if bin := findPostgres(ctx); bin != "" {
		return bin, nil
	}
	return "", fmt.Errorf("PostgreSQL %d or newer is needed and isn't found; put its initdb and postgres on the PATH, or give %s", oldestPostgres, EnvPostgres)
}

var postgresVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func findPostgres(ctx context.Context) string {
	var folders []string
	if p, err := exec.LookPath("postgres"); err == nil {
		folders = append(folders, filepath.Dir(p))
	}
	// Debian and Homebrew keep releases side by side, off the PATH.
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		found, _ := filepath.Glob(pattern)
		folders = append(folders, found...)
	}
	best, newest := "", oldestPostgres-1
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f, "initdb")); err != nil {
			continue
		}
		out, err := runs(ctx, 10*time.Second, command(filepath.Join(f, "postgres"), "--version"))
		if err != nil {
			continue
		}
		m := postgresVersion.FindStringSubmatch(out)
		if m == nil {
			continue
		}
		if v, _ := strconv.Atoi(m[1]); v > newest {
			best, newest = f, v
		}
	}
	return best
}

// hidePassword is a connection URL as it may be printed.
func hidePassword(address string) string {
	u, err := url.Parse(address)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return "(a connection string)"
	}
	return u.Redacted()
}
