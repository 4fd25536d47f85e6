package sqlite

import (
	"embed"
	"fmt"
	"io/fs"
	"sort"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// Migrations are numbered from 1 without gaps and never change once released; the file's user_version says which
// have run. The runner is our own: the ones we know want database/sql, which nothing else here uses.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrationFiles are the names, in order.
func migrationFiles() []string {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	sort.Strings(names)
	return names
}

func migrate(c *conn, path string) error {
	names := migrationFiles()
	if err := c.begin(qBeginWrite); err != nil {
		return environment("open ledger "+path, err)
	}
	err := func() error {
		version, err := fileVersion(c, path)
		if err != nil {
			return err
		}
		if version > int64(len(names)) {
			return newer(path, version)
		}
		for i := int(version); i < len(names); i++ {
			if err := migrateTo(c, i+1, names[i]); err != nil {
				return fmt.Errorf("migrate ledger %s with %s: %w", path, names[i], err)
			}
		}
		return nil
	}()
	if err != nil {
		_ = c.rollback()
		return err
	}
	if err := c.commit(); err != nil {
		return environment("migrate ledger "+path, err)
	}
	return nil
}

func migrateTo(c *conn, version int, name string) error {
	script, err := migrations.ReadFile(name)
	if err != nil {
		return err
	}
	for _, sql := range []string{string(script), fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", version, applicationID)} {
		st, err := c.prepare(sql)
		if err != nil {
			return err
		}
		if _, err := st.ExecContext(background, nil); err != nil {
			_ = st.Close()
			return err
		}
		if err := st.Close(); err != nil {
			return err
		}
	}
	return nil
}

var (
	qVersion     = define("PRAGMA user_version")
	qApplication = define("PRAGMA application_id")
	qAnyTable    = define("SELECT 1 FROM sqlite_schema LIMIT 1")
)

// fileVersion is how many migrations a file has had. A file that something else made is refused.
func fileVersion(c *conn, path string) (version int64, err error) {
	var application int64
	if _, err := c.first(qApplication, func(r row) { application = r.int(0) }); err != nil {
		return 0, environment("open ledger "+path, err)
	}
	if _, err := c.first(qVersion, func(r row) { version = r.int(0) }); err != nil {
		return 0, environment("open ledger "+path, err)
	}
	if application == applicationID {
		return version, nil
	}
	used, err := c.first(qAnyTable, func(row) {})
	if err != nil {
		return 0, environment("open ledger "+path, err)
	}
	if used || version != 0 {
		return 0, fault.Fatalf("open ledger %s: the file is a database of something else: use another data folder", path)
	}
	return 0, nil
}

func checkVersion(c *conn, path string) error {
	version, err := fileVersion(c, path)
	switch n := int64(len(migrationFiles())); {
	case err != nil:
		return err
	case version > n:
		return newer(path, version)
	case version < n:
		return fault.Fatalf("open ledger %s: it was written by an older Swarmlog: start it once with swarmlog up, which brings it up to date", path)
	}
	return nil
}

func newer(path string, version int64) error {
	return fault.Fatalf("open ledger %s: it was written by a newer Swarmlog (its version is %d, this program knows %d): upgrade this program",
		path, version, len(migrationFiles()))
}
