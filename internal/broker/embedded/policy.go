package embedded

import (
	"fmt"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// offered is what clients are told they may ask: all of the protocol but share groups.
func offered() *kversion.Versions {
	v := kversion.Stable()
	for _, k := range []kmsg.Key{
		kmsg.ShareGroupHeartbeat, kmsg.ShareGroupDescribe, kmsg.ShareFetch, kmsg.ShareAcknowledge,
		kmsg.DescribeShareGroupOffsets, kmsg.AlterShareGroupOffsets, kmsg.DeleteShareGroupOffsets,
	} {
		v.SetMaxKeyVersion(k.Int16(), -1)
	}
	return v
}

// settings are what the broker falls back to where a topic says nothing: nothing is ever removed. Segments are small
// since a start reads one of each partition into memory at a time.
func settings() map[string]string {
	return map[string]string{
		"log.retention.ms":    "-1",
		"log.retention.bytes": "-1",
		"log.segment.bytes":   "33554432",
	}
}

// policy keeps the package's rules for every client: it looks at requests before the broker does. Its functions run
// one at a time, on the broker's own goroutine.
type policy struct {
	cluster *kfake.Cluster
	room    func() error // nil while there's room for new topics

	mu    sync.Mutex // a leaf: kfake isn't called under it
	full  bool       // records are refused too
	gated bool       // gate is in place
}

func (p *policy) install() {
	p.intercept(kmsg.CreateTopics, p.createTopics)
	p.intercept(kmsg.AlterConfigs, p.alterConfigs)
	p.intercept(kmsg.IncrementalAlterConfigs, p.incrementalAlterConfigs)
	p.intercept(kmsg.DeleteRecords, p.deleteRecords)
}

// intercept lets answer answer requests of a kind; where it returns nil the broker does.
func (p *policy) intercept(key kmsg.Key, answer func(kmsg.Request) kmsg.Response) {
	p.cluster.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		p.cluster.KeepControl()
		resp := answer(req)
		return resp, nil, resp != nil
	})
}

// setFull says whether records are to be refused. Every interception costs each request of its kind a goroutine, so
// the one of produce requests is in place only while it's needed.
func (p *policy) setFull(full bool) {
	p.mu.Lock()
	p.full = full
	add := full && !p.gated
	p.gated = p.gated || add
	p.mu.Unlock()
	if add {
		p.cluster.ControlKey(kmsg.Produce.Int16(), p.gate)
	}
}

// gate answers produce requests while the disk is full, and takes itself away at the first one after that.
func (p *policy) gate(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
	p.mu.Lock()
	full := p.full
	p.gated = full
	p.mu.Unlock()
	if !full {
		p.cluster.DropControl()
		return nil, nil, false
	}
	p.cluster.KeepControl()
	return refuseRecords(req.(*kmsg.ProduceRequest)), nil, true
}

// refuseRecords answers KAFKA_STORAGE_ERROR, which producers retry: the records wait with them. Were they left to fail
// on a full disk, the broker would have counted their sequence numbers, and have called the retry a copy.
func refuseRecords(req *kmsg.ProduceRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic, topic.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.Partition = p.Partition
			partition.ErrorCode = kerr.KafkaStorageError.Code
			partition.BaseOffset = -1
			topic.Partitions = append(topic.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func (p *policy) createTopics(r kmsg.Request) kmsg.Response {
	req := r.(*kmsg.CreateTopicsRequest)
	code, reason := int16(0), ""
	if err := p.room(); err != nil {
		code, reason = kerr.KafkaStorageError.Code, err.Error()
	}
	for i := range req.Topics {
		t := &req.Topics[i]
		kept := t.Configs[:0]
		for _, c := range t.Configs {
			if isRetention(c.Name) {
				continue
			}
			if err := checkSetting(c.Name, c.Value); err != nil {
				code, reason = kerr.PolicyViolation.Code, fmt.Sprintf("topic %s: %v", t.Topic, err)
			}
			kept = append(kept, c)
		}
		t.Configs = append(kept, unlimited("retention.ms"), unlimited("retention.bytes")) // for tools to see
	}
	if code == 0 {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	for _, t := range req.Topics {
		topic := kmsg.NewCreateTopicsResponseTopic()
		topic.Topic, topic.ErrorCode, topic.ErrorMessage = t.Topic, code, kmsg.StringPtr(reason)
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}

func unlimited(name string) kmsg.CreateTopicsRequestTopicConfig {
	c := kmsg.NewCreateTopicsRequestTopicConfig()
	c.Name, c.Value = name, kmsg.StringPtr("-1")
	return c
}

// checkSetting refuses a setting of a topic or of the broker under which records could be removed.
func checkSetting(name string, value *string) error {
	set := ""
	if value != nil {
		set = *value
	}
	switch {
	case strings.HasSuffix(name, "cleanup.policy") && strings.Contains(set, "compact"):
		return fmt.Errorf("%s=%s: the embedded broker doesn't compact, since a kill in the middle of it loses records: leave the setting out", name, set)
	case isRetention(name) && set != "-1" && set != "":
		return fmt.Errorf("%s=%s: the embedded broker removes no records, since a topic that empties starts again at offset 0: leave the setting out", name, set)
	}
	return nil
}

func isRetention(name string) bool {
	switch strings.TrimPrefix(name, "log.") {
	case "retention.ms", "retention.bytes":
		return true
	}
	return false
}

func (p *policy) alterConfigs(r kmsg.Request) kmsg.Response {
	req := r.(*kmsg.AlterConfigsRequest)
	var refused error
	for _, res := range req.Resources {
		for _, c := range res.Configs {
			if err := checkSetting(c.Name, c.Value); err != nil {
				refused = fmt.Errorf("%s: %w", res.ResourceName, err)
			}
		}
	}
	if refused == nil {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	for _, res := range req.Resources {
		answer := kmsg.NewAlterConfigsResponseResource()
		answer.ResourceName, answer.ResourceType = res.ResourceName, res.ResourceType
		answer.ErrorCode, answer.ErrorMessage = kerr.PolicyViolation.Code, kmsg.StringPtr(refused.Error())
		resp.Resources = append(resp.Resources, answer)
	}
	return resp
}

func (p *policy) incrementalAlterConfigs(r kmsg.Request) kmsg.Response {
	req := r.(*kmsg.IncrementalAlterConfigsRequest)
	var refused error
	for _, res := range req.Resources {
		for _, c := range res.Configs {
			if err := checkSetting(c.Name, c.Value); err != nil {
				refused = fmt.Errorf("%s: %w", res.ResourceName, err)
			}
		}
	}
	if refused == nil {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	for _, res := range req.Resources {
		answer := kmsg.NewIncrementalAlterConfigsResponseResource()
		answer.ResourceName, answer.ResourceType = res.ResourceName, res.ResourceType
		answer.ErrorCode, answer.ErrorMessage = kerr.PolicyViolation.Code, kmsg.StringPtr(refused.Error())
		resp.Resources = append(resp.Resources, answer)
	}
	return resp
}

func (p *policy) deleteRecords(r kmsg.Request) kmsg.Response {
	req := r.(*kmsg.DeleteRecordsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	for _, t := range req.Topics {
		topic := kmsg.NewDeleteRecordsResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			partition := kmsg.NewDeleteRecordsResponseTopicPartition()
			partition.Partition, partition.ErrorCode = p.Partition, kerr.PolicyViolation.Code
			topic.Partitions = append(topic.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp
}
