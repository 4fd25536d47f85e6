package devservices

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Images, of the same releases as without Docker.
const (
	kafkaImage    = "apache/kafka:" + KafkaVersion
	postgresImage = "postgres:17"
)

// dockerAnswers tells whether a Docker engine is there; the client alone, without one, fails here.
func dockerAnswers(ctx context.Context) bool {
	if _, err := exec.LookPath("docker"); err != nil {
		return false
	}
	_, err := docker(ctx, 10*time.Second, "info", "--format", "{{.ServerVersion}}")
	return err == nil
}

func docker(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	return runs(ctx, limit, command("docker", args...))
}

func containerRuns(ctx context.Context, id string) bool {
	out, err := docker(ctx, givenLimit, "inspect", "--format", "{{.State.Running}}", id)
	return err == nil && out == "true"
}

func removeContainers(ctx context.Context, containers []string, network string) error {
	var errs []error
	for _, c := range containers {
		if out, err := docker(ctx, stopLimit, "rm", "--force", "--volumes", c); err != nil && !strings.Contains(out, "No such container") {
			errs = append(errs, err)
		}
	}
	if network != "" && len(errs) == 0 {
		if out, err := docker(ctx, stopLimit, "network", "rm", network); err != nil && !strings.Contains(out, "not found") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *desk) pull(ctx context.Context, image string) error {
	if _, err := docker(ctx, givenLimit, "image", "inspect", "--format", "{{.Id}}", image); err == nil {
		return nil
	}
	d.logf("docker: pulling %s", image)
	_, err := docker(ctx, getLimit, "pull", "--quiet", image)
	return err
}

// container runs one and records it.
func (d *desk) container(ctx context.Context, i *instance, name, image string, args ...string) error {
	run := append([]string{"run", "--detach", "--name", name, "--label", "swarmlog=devservices"}, args...)
	if _, err := docker(ctx, readyLimit, append(run, image)...); err != nil {
		return fmt.Errorf("run container %s: %w", name, err)
	}
	i.Containers = append(i.Containers, name)
	return d.state.save()
}

func (kafkaServer) docker(ctx context.Context, d *desk, i *instance) error {
	if err := d.pull(ctx, kafkaImage); err != nil {
		return err
	}
	ports, err := freePorts(Brokers)
	if err != nil {
		return err
	}
	cluster := clusterID()
	tag := "swarmlog-" + newPassword()[:8]
	if _, err := docker(ctx, readyLimit, "network", "create", tag); err != nil {
		return fmt.Errorf("make the brokers' network: %w", err)
	}
	i.Network = tag
	host := func(n int) string { return fmt.Sprintf("%s-kafka-%d", tag, n) }
	var voters, addresses []string
	for n := 1; n <= Brokers; n++ {
		voters = append(voters, fmt.Sprintf("%d@%s:9093", n, host(n)))
		addresses = append(addresses, "127.0.0.1:"+strconv.Itoa(ports[n-1]))
	}
	for n := 1; n <= Brokers; n++ {
		port := strconv.Itoa(ports[n-1])
		settings := append([][2]string{
			{"process.roles", "broker,controller"},
			{"node.id", strconv.Itoa(n)},
			{"controller.quorum.voters", strings.Join(voters, ",")},
			{"controller.listener.names", "CONTROLLER"},
			{"inter.broker.listener.name", "INSIDE"},
			{"listener.security.protocol.map", "CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"},
			{"listeners", "CONTROLLER://:9093,INSIDE://:9094,OUTSIDE://:" + port},
			{"advertised.listeners", fmt.Sprintf("INSIDE://%s:9094,OUTSIDE://127.0.0.1:%s", host(n), port)},
		}, commonSettings...)
		args := []string{"--hostname", host(n), "--network", tag, "--publish", "127.0.0.1:" + port + ":" + port,
			"--env", "CLUSTER_ID=" + cluster, "--env", "KAFKA_HEAP_OPTS=-Xms256m -Xmx512m"}
		for _, s := range settings {
			args = append(args, "--env", "KAFKA_"+strings.ToUpper(strings.ReplaceAll(s[0], ".", "_"))+"="+s[1])
		}
		if err := d.container(ctx, i, host(n), kafkaImage, args...); err != nil {
			return err
		}
	}
	i.Address = strings.Join(addresses, ",")
	return nil
}

func (postgresServer) docker(ctx context.Context, d *desk, i *instance) error {
	if err := d.pull(ctx, postgresImage); err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	password := newPassword()
	if err := d.container(ctx, i, "swarmlog-"+newPassword()[:8]+"-postgres", postgresImage,
		"--publish", fmt.Sprintf("127.0.0.1:%d:5432", ports[0]), "--shm-size", "256m",
		"--env", "POSTGRES_USER="+postgresUser, "--env", "POSTGRES_PASSWORD="+password, "--env", "POSTGRES_DB=postgres"); err != nil {
		return err
	}
	i.Address = postgresURL(password, ports[0])
	return nil
}
