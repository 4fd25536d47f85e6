package devservices

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// KafkaVersion is the release that is started.
const KafkaVersion = "4.3.1"

// oldestJava is what a broker of that release runs on.
const oldestJava = 17

// pom is all that Maven needs to fetch the broker with its dependencies. slf4j-simple lets it log.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>swarmlog</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + KafkaVersion + `</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
`

type kafkaServer struct{}

func (kafkaServer) name() string { return Kafka }
func (kafkaServer) env() string  { return EnvKafka }

// answers asks for metadata. Where we started the brokers, all of them must be there.
func (kafkaServer) answers(ctx context.Context, address string) (string, error) {
	seeds := strings.Split(address, ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ClientID("swarmlog-devservices"),
		kgo.RetryTimeout(2*time.Second), kgo.DialTimeout(2*time.Second))
	if err != nil {
		return "", fmt.Errorf("ask Kafka at %s: %w", address, err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	admin := kadm.NewClient(client)
	m, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return "", fmt.Errorf("ask Kafka at %s: %w", address, err)
	}
	if len(m.Brokers) < len(seeds) {
		return "", fmt.Errorf("ask Kafka at %s: %d of %d brokers have registered", address, len(m.Brokers), len(seeds))
	}
	return fmt.Sprintf("Kafka, %d brokers", len(m.Brokers)), nil
}

func (kafkaServer) native(ctx context.Context, d *desk, i *instance) error {
	java, err := d.java(ctx)
	if err != nil {
		return err
	}
	libs, err := d.kafkaJars(ctx)
	if err != nil {
		return err
	}
	ports, err := freePorts(2 * Brokers)
	if err != nil {
		return err
	}
	run := d.path("run", "kafka")
	if err := os.RemoveAll(run); err != nil {
		return fmt.Errorf("clear the brokers' data: %w", err)
	}
	i.Folders = append(i.Folders, run)
	cluster := clusterID()
	var addresses []string
	for n := 1; n <= Brokers; n++ {
		folder := filepath.Join(run, strconv.Itoa(n))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("make a broker's folder: %w", err)
		}
		config := filepath.Join(folder, "server.properties")
		if err := os.WriteFile(config, []byte(brokerConfig(n, folder, ports)), 0o600); err != nil {
			return fmt.Errorf("write a broker's configuration: %w", err)
		}
		if _, err := runs(ctx, readyLimit, command(java, "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", libs+"/*",
			"kafka.tools.StorageTool", "format", "-t", cluster, "-c", config)); err != nil {
			return fmt.Errorf("format broker %d: %w", n, err)
		}
		addresses = append(addresses, "127.0.0.1:"+strconv.Itoa(ports[n-1]))
	}
	for n := 1; n <= Brokers; n++ {
		folder := filepath.Join(run, strconv.Itoa(n))
		cmd := exec.Command(java, "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
			"-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", libs+"/*", "kafka.Kafka", filepath.Join(folder, "server.properties"))
		cmd.Dir = folder
		p, err := spawn(cmd, d.path("logs", fmt.Sprintf("kafka-%d.log", n)), syscall.SIGTERM)
		if err != nil {
			return err
		}
		i.Processes = append(i.Processes, p)
		if err := d.state.save(); err != nil { // each at once: whatever happens next, stop finds it
			return err
		}
	}
	i.Address = strings.Join(addresses, ",")
	return nil
}

// brokerConfig is the configuration of broker n: KRaft, each node broker and controller. ports holds the brokers'
// ports, then the controllers'. The internal topics are small, since fifty partitions each only cost time here.
func brokerConfig(n int, folder string, ports []int) string {
	var voters []string
	for v := 1; v <= Brokers; v++ {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", v, ports[Brokers+v-1]))
	}
	listeners := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", ports[n-1], ports[Brokers+n-1])
	settings := append([][2]string{
		{"process.roles", "broker,controller"},
		{"node.id", strconv.Itoa(n)},
		{"controller.quorum.voters", strings.Join(voters, ",")},
		{"controller.listener.names", "CONTROLLER"},
		{"listeners", listeners},
		{"advertised.listeners", listeners},
		{"log.dirs", filepath.Join(folder, "data")},
	}, commonSettings...)
	var b strings.Builder
	for _, s := range settings {
		// Backslashes are the one thing that a value could hold and a properties file would read otherwise.
		fmt.Fprintf(&b, "%s=%s\n", s[0], strings.ReplaceAll(s[1], `\`, `\\`))
	}
	return b.String()
}

var commonSettings = [][2]string{
	{"default.replication.factor", "3"},
	{"min.insync.replicas", "2"},
	{"num.partitions", "4"},
	{"auto.create.topics.enable", "false"},
	{"unclean.leader.election.enable", "false"},
	{"offsets.topic.replication.factor", "3"},
	{"offsets.topic.num.partitions", "4"},
	{"transaction.state.log.replication.factor", "3"},
	{"transaction.state.log.min.isr", "2"},
	{"transaction.state.log.num.partitions", "4"},
	{"share.coordinator.state.topic.replication.factor", "3"},
	{"share.coordinator.state.topic.min.isr", "2"},
	{"share.coordinator.state.topic.num.partitions", "4"},
	{"group.initial.rebalance.delay.ms", "0"},
}

// clusterID is a random UUID in the form that Kafka writes them: base64, 22 characters. Kafka refuses one that
// begins with a dash, as a command line does.
func clusterID() string {
	var b [16]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// java finds a Java that will do, and installs one where that's possible.
func (d *desk) java(ctx context.Context) (string, error) {
	find := func() (string, error) {
		candidates := []string{"java"}
		if home := d.getenv("JAVA_HOME"); home != "" {
			candidates = slices.Insert(candidates, 0, filepath.Join(home, "bin", "java"))
		}
		var errs []error
		for _, c := range candidates {
			out, err := runs(ctx, 20*time.Second, command(c, "-version"))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			m := javaVersion.FindStringSubmatch(out)
			if m == nil {
				errs = append(errs, fmt.Errorf("%s tells no version", c))
				continue
			}
			if v, _ := strconv.Atoi(m[1]); v < oldestJava {
				errs = append(errs, fmt.Errorf("%s is Java %s", c, m[1]))
				continue
			}
			return c, nil
		}
		return "", errors.Join(errs...)
	}
	if java, err := find(); err == nil {
		return java, nil
	}
	if err := d.install(ctx, fmt.Sprintf("Kafka needs Java %d or newer", oldestJava), "default-jre-headless"); err != nil {
		return "", err
	}
	java, err := find()
	if err != nil {
		return "", fmt.Errorf("find Java %d or newer for Kafka: %w; install one, or give %s", oldestJava, err, EnvKafka)
	}
	return java, nil
}

// kafkaJars is the folder with the broker's jars, fetched through Maven the first time.
func (d *desk) kafkaJars(ctx context.Context) (string, error) {
	home := d.path("kafka-" + KafkaVersion)
	libs := filepath.Join(home, "libs")
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		if err := d.install(ctx, "Kafka's jars come through Maven", "maven"); err != nil {
			return "", err
		}
	}
	partial := home + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return "", fmt.Errorf("make a folder for Kafka's jars: %w", err)
	}
	if err := os.WriteFile(filepath.Join(partial, "pom.xml"), []byte(pom), 0o644); err != nil {
		return "", fmt.Errorf("write Maven's project file: %w", err)
	}
	d.logf("kafka: fetching Kafka %s through Maven into %s (about 45 MB)", KafkaVersion, home)
	begin := time.Now()
	// -C: a jar whose checksum differs is an error, not a warning.
	if _, err := runs(ctx, getLimit, command("mvn", "-B", "-q", "-C", "-Dstyle.color=never", "-f", filepath.Join(partial, "pom.xml"),
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(partial, "libs"))); err != nil {
		return "", fmt.Errorf("fetch Kafka's jars: %w; check that Maven reaches a repository, or give %s", err, EnvKafka)
	}
	// Renamed only once it's complete: a fetch that was cut off is never taken for a whole one.
	if err := errors.Join(os.RemoveAll(home), os.Rename(partial, home)); err != nil {
		return "", fmt.Errorf("put Kafka's jars in place: %w", err)
	}
	d.logf("kafka: fetched in %.0f s", time.Since(begin).Seconds())
	return libs, nil
}
