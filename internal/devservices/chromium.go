package devservices

import (
	"context"
	"fmt"
	"os/exec"
)

// browsers are names and places of Chromium and Chrome.
var browsers = []string{
	"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
	"/Applications/Chromium.app/Contents/MacOS/Chromium",
	"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
}

// FindChromium is the path of a browser that is there, by the environment or on the PATH; "" where none is.
func FindChromium(getenv func(string) string) (string, error) {
	if given := getenv(EnvChrome); given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("%s is set, but: %w; correct it, or unset it to have one found", EnvChrome, err)
		}
		return path, nil
	}
	for _, b := range browsers {
		if path, err := exec.LookPath(b); err == nil {
			return path, nil
		}
	}
	return "", nil
}

// chromium finds a browser, and installs one where that's possible.
func (d *desk) chromium(ctx context.Context) (string, error) {
	path, err := FindChromium(d.getenv)
	if err == nil && path == "" {
		if err = d.install(ctx, "tests of pages need a browser", "chromium"); err == nil {
			path, err = FindChromium(d.getenv)
		}
	}
	if err == nil && path == "" {
		err = fmt.Errorf("no browser is found; install Chromium, or give its path by %s", EnvChrome)
	}
	if err == nil {
		d.logf("chromium: %s", path)
	}
	return path, err
}
