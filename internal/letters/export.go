package letters

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// WriteFiles writes a letter with its content into a folder, the record's bytes unchanged:
//
//	AGENT/TOPIC/PARTITION-OFFSET.json   the letter, as it is listed, with key and headers in base64
//	AGENT/TOPIC/PARTITION-OFFSET.value  the record's value; absent where it has none or it was omitted
//
// What is there already is written anew. Each file is whole or not there.
func WriteFiles(folder string, l *Letter) error {
	dir := filepath.Join(folder, fileName(l.Agent), fileName(l.Topic))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("export dead letters: %w", err)
	}
	base := filepath.Join(dir, fmt.Sprintf("%d-%d", l.Partition, l.Offset))
	about := *l
	if l.Content != nil {
		bytes := *l.Content
		bytes.Value = nil
		about.Content = &bytes
		if l.Content.Value != nil {
			if err := writeWhole(base+".value", l.Content.Value); err != nil {
				return err
			}
		}
	}
	b, err := json.MarshalIndent(&about, "", "  ")
	if err != nil {
		return fmt.Errorf("export dead letters: %w", err)
	}
	return writeWhole(base+".json", append(b, '\n'))
}

// writeWhole writes a file under another name and renames it.
func writeWhole(path string, b []byte) error {
	err := os.WriteFile(path+".new", b, 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("export dead letters: %w", errors.Join(err, os.Remove(path+".new")))
	}
	return nil
}

// fileName is a name of an agent or a topic as that of a file: letters' headers are bytes from outside.
func fileName(s string) string {
	s = url.PathEscape(s)
	if strings.Trim(s, ".") == "" {
		s = strings.ReplaceAll(s, ".", "%2E")
	}
	if len(s) > 200 {
		s = s[:200]
	}
	return s
}
