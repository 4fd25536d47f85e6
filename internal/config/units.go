package config

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"time"
)

var size = regexp.MustCompile(`^([0-9]{1,18})(\.[0-9]{1,6})? ?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$`)

var sizeUnits = map[string]float64{
	"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

var (
	errSize     = errors.New("isn't a size")
	errDuration = errors.New("isn't a duration")
)

// ParseSize reads a number of bytes: 65536, 64KiB, 1.5GB. KB is 1,000 bytes, KiB 1,024.
func ParseSize(s string) (int64, error) {
	m := size.FindStringSubmatch(s)
	if m == nil || (m[2] != "" && (m[3] == "" || m[3] == "B")) {
		return 0, errSize
	}
	if m[2] == "" {
		n, err := strconv.ParseInt(m[1], 10, 64)
		unit := int64(sizeUnits[m[3]])
		if err != nil || n > math.MaxInt64/unit {
			return 0, errSize
		}
		return n * unit, nil
	}
	f, err := strconv.ParseFloat(m[1]+m[2], 64)
	if err != nil || f*sizeUnits[m[3]] > 1<<62 {
		return 0, errSize
	}
	return int64(f * sizeUnits[m[3]]), nil
}

// ParseDuration reads a time with its unit: 250ms, 30s, 5m, 1h30m.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || s == "0" {
		return 0, errDuration
	}
	return d, nil
}
