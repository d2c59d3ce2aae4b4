//go:build blis

// Replays a TraceV2 on one instance of BLIS whose steps come from a table, and prints the mean TTFT
// and ITL as JSON. benchmarks/blis_table.py says where this folder goes.
package main

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/inference-sim/inference-sim/sim"
	"github.com/inference-sim/inference-sim/sim/kv"
)

func main() {
	folder := flag.String("table", "", "folder of the table")
	trace := flag.String("trace", "", "CSV of a TraceV2")
	seqs := flag.Int64("max-num-seqs", 0, "requests of a step")
	tokens := flag.Int64("max-num-batched-tokens", 0, "tokens of a step")
	length := flag.Int64("max-model-len", 0, "longest request, tokens")
	blocks := flag.Int64("kv-blocks", 0, "KV blocks")
	size := flag.Int64("block-size", 16, "tokens of a block")
	flag.Parse()

	model, err := NewTableLatency(*folder)
	check(err)
	requests, err := read(*trace)
	check(err)
	var config sim.SimConfig
	config.Horizon = math.MaxInt64
	config.MaxNumSeqs, config.MaxNumBatchedTokens = *seqs, *tokens
	config.MaxModelLen = *length
	config.TotalKVBlocks, config.BlockSizeTokens = *blocks, *size
	one, err := sim.NewSimulator(config, kv.NewKVCacheState(*blocks, *size), model)
	check(err)
	for _, request := range requests {
		one.InjectArrival(request)
	}
	one.Run()
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"completed":   float64(one.Metrics.CompletedRequests),
		"preemptions": float64(one.Metrics.PreemptionCount),
		"ttft_s":      float64(one.Metrics.TTFTSum) / 1e6 / float64(len(requests)),
		"itl_s":       mean(one.Metrics.AllITLs) / 1e6,
	}))
}

// The requests of a trace, no two of which share a token.
func read(path string) ([]*sim.Request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, err
	}
	columns := map[string]int{}
	for place, name := range rows[0] {
		columns[name] = place
	}
	var requests []*sim.Request
	next := 0
	for _, row := range rows[1:] {
		var numbers [3]int
		for i, name := range [3]string{"arrival_time_us", "input_tokens", "output_tokens"} {
			place, known := columns[name]
			if !known {
				return nil, fmt.Errorf("%s: no column %s", path, name)
			}
			if numbers[i], err = strconv.Atoi(row[place]); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		request := &sim.Request{
			ID:           strconv.Itoa(len(requests)),
			ArrivalTime:  int64(numbers[0]),
			MaxOutputLen: numbers[2],
			State:        sim.StateQueued,
		}
		request.InputTokens = fresh(request.InputTokens, numbers[1], &next)
		request.OutputTokens = fresh(request.OutputTokens, numbers[2], &next)
		requests = append(requests, request)
	}
	return requests, nil
}

// Tokens that were not there before, of whatever type the request has them.
func fresh[T ~int | ~int32](tokens []T, count int, next *int) []T {
	for end := *next + count; *next < end; *next++ {
		tokens = append(tokens, T(*next))
	}
	return tokens
}

func mean(values []int64) float64 {
	total := 0.0
	for _, value := range values {
		total += float64(value)
	}
	return total / float64(len(values))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
