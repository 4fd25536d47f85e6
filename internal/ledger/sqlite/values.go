package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// timeLayout is how a time.Time is stored: sorts as text, and SQLite's date functions read it.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// arguments turns a user's arguments into values that the driver takes.
func arguments(args []any) ([]driver.Value, error) {
	if len(args) == 0 {
		return nil, nil
	}
	values := make([]driver.Value, len(args))
	for i, a := range args {
		v, err := argument(a)
		if err != nil {
			return nil, fault.As(fault.Permanent, fmt.Errorf("parameter $%d: %w", i+1, err))
		}
		values[i] = v
	}
	return values, nil
}

func argument(a any) (driver.Value, error) {
	switch v := a.(type) {
	case nil, int64, bool:
		return v, nil
	case int:
		return int64(v), nil
	case string:
		return text(v)
	case []byte:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case float64:
		if math.IsNaN(v) {
			return nil, errors.New("SQLite would store NaN as NULL")
		}
		return v, nil
	case time.Time:
		return v.UTC().Format(timeLayout), nil
	case json.RawMessage: // as text: SQLite takes JSON in a blob for its own binary form
		if v == nil {
			return nil, nil
		}
		return text(string(v))
	}
	v, err := driver.DefaultParameterConverter.ConvertValue(a)
	if err != nil {
		return nil, err
	}
	switch v.(type) {
	case string, float64, time.Time:
		return argument(v)
	}
	return v, nil
}

// text refuses what PostgreSQL would: an agent that runs here must run there.
func text(s string) (driver.Value, error) {
	switch {
	case !utf8.ValidString(s):
		return nil, errors.New("text isn't valid UTF-8; pass bytes as []byte")
	case strings.IndexByte(s, 0) >= 0:
		return nil, errors.New("text holds a NUL character; pass bytes as []byte")
	}
	return s, nil
}

func scan(values []driver.Value, dest []any) error {
	if len(dest) != len(values) {
		return fault.Permanentf("scan: the query has %d columns and Scan got %d destinations", len(values), len(dest))
	}
	for i, d := range dest {
		v := values[i]
		if b, ok := v.([]byte); ok && b == nil {
			v = []byte{} // the driver's way to say empty; NULL is nil
		}
		if err := scanValue(d, v); err != nil {
			return fault.As(fault.Permanent, fmt.Errorf("scan column %d: %w", i+1, err))
		}
	}
	return nil
}

func scanValue(dest any, v driver.Value) error {
	switch d := dest.(type) {
	case *any:
		*d = v
		return nil
	case *string:
		return assign(d, v)
	case *[]byte:
		if v == nil {
			*d = nil
			return nil
		}
		return assign(d, v)
	case *json.RawMessage:
		var b []byte
		if v != nil {
			if err := assign(&b, v); err != nil {
				return err
			}
		}
		*d = b
		return nil
	case *int64:
		return assign(d, v)
	case *int:
		return assign(d, v)
	case *float64:
		return assign(d, v)
	case *bool:
		return assign(d, v)
	case *time.Time:
		t, err := moment(v)
		*d = t
		return err
	case sql.Scanner:
		return d.Scan(v)
	}
	return scanReflect(dest, v)
}

// scanReflect covers pointers to pointers, where NULL is nil, and types made from the plain ones.
func scanReflect(dest any, v driver.Value) error {
	p := reflect.ValueOf(dest)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("destination is a %T, not a pointer", dest)
	}
	e := p.Elem()
	switch e.Kind() {
	case reflect.Pointer:
		if v == nil {
			e.SetZero()
			return nil
		}
		e.Set(reflect.New(e.Type().Elem()))
		return scanValue(e.Interface(), v)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int, reflect.Int64:
		var n int64
		if err := assign(&n, v); err != nil {
			return err
		}
		if e.OverflowInt(n) {
			return fmt.Errorf("%d doesn't fit a %s", n, e.Type())
		}
		e.SetInt(n)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint, reflect.Uint64:
		var n uint64
		if err := assign(&n, v); err != nil {
			return err
		}
		if e.OverflowUint(n) {
			return fmt.Errorf("%d doesn't fit a %s", n, e.Type())
		}
		e.SetUint(n)
	case reflect.Float32, reflect.Float64:
		var f float64
		if err := assign(&f, v); err != nil {
			return err
		}
		e.SetFloat(f)
	case reflect.String:
		var s string
		if err := assign(&s, v); err != nil {
			return err
		}
		e.SetString(s)
	case reflect.Bool:
		var b bool
		if err := assign(&b, v); err != nil {
			return err
		}
		e.SetBool(b)
	default:
		return fmt.Errorf("can't scan into a %s", e.Type())
	}
	return nil
}

// assign converts as database/sql does.
func assign[T any](dest *T, v driver.Value) error {
	var n sql.Null[T]
	if err := n.Scan(v); err != nil {
		return err
	}
	if !n.Valid {
		return fmt.Errorf("is NULL, which a %T can't hold: scan into a pointer", *dest)
	}
	*dest = n.V
	return nil
}

func moment(v driver.Value) (time.Time, error) {
	switch v := v.(type) {
	case time.Time:
		return v, nil
	case string:
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", time.DateTime, time.DateOnly} {
			if t, err := time.Parse(layout, v); err == nil {
				return t, nil
			}
		}
		return time.Time{}, fmt.Errorf("%q isn't a time", v)
	case nil:
		return time.Time{}, errors.New("is NULL, which a time.Time can't hold: scan into a pointer")
	}
	return time.Time{}, fmt.Errorf("a %T isn't a time", v)
}

// stamp is a time as the ledger's own tables have it: microseconds since 1970, 0 for none.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func unstamp(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}
