//go:build race

package agents

const raced = true
