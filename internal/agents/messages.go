package agents

import (
	"fmt"
	"time"
)

// Types of the events that the agents emit.
const (
	DocumentFound = "DocumentFoundEvent"
	PageSplit     = "PageSplitEvent"
	PageRead      = "PageReadEvent"
	PageEmbedded  = "PageEmbeddedEvent"
)

// Document is the data of a DocumentFoundEvent. Its subject is the document's id; that of a file that can't be
// read is made from its path.
type Document struct {
	Path      string    `json:"path"`             // absolute
	Name      string    `json:"name"`             // within its input folder
	SHA256    string    `json:"sha256,omitempty"` // the document's id, in hex
	Size      int64     `json:"size"`             // bytes
	MediaType string    `json:"media_type,omitempty"`
	Modified  time.Time `json:"modified"`
	Problem   string    `json:"problem,omitempty"` // why it can't be read; the splitter dead-letters it with this reason
}

// Page is the data of a PageSplitEvent: the text of one page. Its subject is that of Place.
type Page struct {
	Place
	Name   string `json:"name"`
	Path   string `json:"path"`
	Pages  int    `json:"pages"`  // of the document, those without text included
	SHA256 string `json:"sha256"` // of the text, in hex
	Text   string `json:"text"`
}

// Notes is the data of a PageReadEvent.
type Notes struct {
	Place
	Summary string   `json:"summary"`
	Terms   []string `json:"terms"`
	Model   string   `json:"model"`
}

// Vector is the data of a PageEmbeddedEvent.
type Vector struct {
	Place
	Vector []byte `json:"vector"` // float32s, little-endian; base64 in JSON
	Dims   int    `json:"dims"`
	Model  string `json:"model"`
}

// Place names a page. Part is 0 but where one page's text was too long for one event and goes on in others.
type Place struct {
	Document string `json:"document"` // SHA-256 of the document, in hex
	Page     int    `json:"page"`     // from 1
	Part     int    `json:"part,omitempty"`
}

// Subject is the aggregate of a page. Each page has its own, so that the pages of one document spread over lanes and
// partitions: they need no order among each other.
func (p Place) Subject() string {
	if p.Part > 0 {
		return fmt.Sprintf("%s/%05d.%d", p.Document, p.Page, p.Part)
	}
	return fmt.Sprintf("%s/%05d", p.Document, p.Page)
}

func (p Place) valid() error {
	if len(p.Document) != 64 || p.Page < 1 || p.Part < 0 {
		return fmt.Errorf("no page is named by document %q, page %d, part %d", p.Document, p.Page, p.Part)
	}
	return nil
}
