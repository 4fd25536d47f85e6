package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// FindPromtool is the path of a promtool that is there, by the environment or on the PATH; "" where none is.
func FindPromtool(getenv func(string) string) (string, error) {
	if given := getenv(EnvPromtool); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("%s is set, but: %w; correct it, or unset it to have one found", EnvPromtool, err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		return path, nil
	}
	return "", nil
}

// promtool finds the program that checks rules of Prometheus, and gets it where that's possible.
func (d *desk) promtool(ctx context.Context) (string, error) {
	path, err := FindPromtool(d.getenv)
	if err == nil && path == "" {
		path, err = d.unpackPromtool(ctx)
	}
	if err == nil {
		d.logf("promtool: %s", path)
	}
	return path, err
}

// unpackPromtool takes the program out of Debian's package, without installing that: installed, it would start a
// server.
func (d *desk) unpackPromtool(ctx context.Context) (string, error) {
	const why = "tests of alert rules need promtool"
	path := d.path("promtool")
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%s: install Prometheus, or give promtool's path by %s", why, EnvPromtool)
		}
	}
	d.logf("%s: getting Debian's prometheus", why)
	begin := time.Now()
	folder, err := os.MkdirTemp(d.cache, "promtool-")
	if err != nil {
		return "", fmt.Errorf("%s: %w", why, err)
	}
	defer func() { _ = os.RemoveAll(folder) }() // what stays of it harms nobody
	in := func(name string, args ...string) error {
		_, err := runs(ctx, getLimit, func(ctx context.Context) *exec.Cmd {
			c := exec.CommandContext(ctx, name, args...)
			c.Dir = folder
			return c
		})
		return err
	}
	download := func() error { return in("apt-get", "-q", "download", "prometheus") }
	if err := download(); err != nil {
		// Lists that are old name packages that are gone. To bring them up to date takes root.
		if err := errors.Join(in("apt-get", "-q", "update"), download()); err != nil {
			return "", fmt.Errorf("%s: %w", why, err)
		}
	}
	packages, err := filepath.Glob(filepath.Join(folder, "prometheus_*.deb"))
	if err != nil || len(packages) != 1 {
		return "", fmt.Errorf("%s: apt-get left %d packages where one was expected (%w)", why, len(packages), err)
	}
	if err := in("dpkg-deb", "-x", packages[0], "."); err != nil {
		return "", fmt.Errorf("%s: %w", why, err)
	}
	if err := os.Rename(filepath.Join(folder, "usr", "bin", "promtool"), path); err != nil {
		return "", fmt.Errorf("%s: %w", why, err)
	}
	d.logf("%s: got it in %.0f s", why, time.Since(begin).Seconds())
	return path, nil
}
